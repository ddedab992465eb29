// SPDX-License-Identifier: MIT
// A C++ program with arrays of its own that averages its gradients with the engine: every rank
// pulls a vector towards a target of its own, so that training must end at the mean of the targets.
#include <isotherm.h>
#include <isotherm/reducer.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

void check(iso_status status) {
    if (status < 0) throw std::runtime_error(iso_last_error()->message);
}

struct Close {
    void operator()(iso_comm *comm) const { iso_comm_destroy(&comm); }
    void operator()(iso_reducer *reducer) const { iso_reducer_destroy(&reducer); }
};
template <typename T> using Owned = std::unique_ptr<T, Close>;

class Trainer {
  public:
    Trainer(iso_comm *comm, size_t count) : value_{std::vector<float>(count), {0.5}} {
        iso_reducer_param list[2] = {};
        list[0].name = "long";
        list[0].value = value_.first.data();
        list[0].count = count;
        list[0].dtype = ISO_F32;
        list[1].name = "double";
        list[1].value = value_.second.data();
        list[1].count = 1;
        list[1].dtype = ISO_F64;
        list[1].layer = 1;
        iso_reducer_config config = {};
        iso_reducer *made = nullptr;
        check(iso_reducer_create(comm, list, 2, &config, &made));
        reducer_.reset(made);
        check(iso_reducer_set_apply(made, &Trainer::update, sizeof(double), this));
    }

    void step(double target, double lr) {
        auto *reducer = reducer_.get();
        check(iso_reducer_param_needed(reducer, 0));
        check(iso_reducer_param_needed(reducer, 1));
        auto *narrow = static_cast<float *>(iso_reducer_grad(reducer, 0));
        auto *wide = static_cast<double *>(iso_reducer_grad(reducer, 1));
        wide[0] = value_.second[0] - target;
        check(iso_reducer_grad_ready(reducer, 1));
        for (size_t i = 0; i < value_.first.size(); i++)
            narrow[i] = value_.first[i] - static_cast<float>(target * static_cast<double>(i));
        check(iso_reducer_grad_ready(reducer, 0));
        check(iso_reducer_step(reducer, &lr));
    }

    double error(double mean) { // the largest, relative to what element i must be
        check(iso_reducer_finish(reducer_.get()));
        double worst = std::fabs(value_.second[0] - mean);
        for (size_t i = 0; i < value_.first.size(); i++)
            worst = std::fmax(worst, std::fabs(static_cast<double>(value_.first[i]) -
                                               mean * static_cast<double>(i)) /
                                         static_cast<double>(i + 1));
        return worst;
    }

  private:
    static iso_status update(int i, void *gradient, double scale, const void *hyper, void *user) {
        auto *self = static_cast<Trainer *>(user);
        double factor = *static_cast<const double *>(hyper) * scale;
        if (i == 1) self->value_.second[0] -= factor * *static_cast<double *>(gradient);
        for (size_t k = 0; i == 0 && k < self->value_.first.size(); k++)
            self->value_.first[k] -= static_cast<float>(factor) * static_cast<float *>(gradient)[k];
        return ISO_OK;
    }

    std::pair<std::vector<float>, std::vector<double>> value_;
    Owned<iso_reducer> reducer_;
};

// Settings begin with what the headers give as defaults, in C++ as in C.
bool has_defaults() {
    iso_data_parallel_config parallel = ISO_DATA_PARALLEL_DEFAULT;
    iso_topology_config topology = ISO_TOPOLOGY_DEFAULT;
    iso_plateau_config plateau = ISO_PLATEAU_DEFAULT;
    iso_lr_plateau_config lr_plateau = ISO_LR_PLATEAU_DEFAULT;
    iso_daso_config daso = ISO_DASO_DEFAULT;
    iso_daso_heat_config heat = ISO_DASO_HEAT_DEFAULT;
    iso_loader_config loader = ISO_LOADER_DEFAULT;
    return parallel.bucket_mb == 0.25 && parallel.piece_mb == 1 && topology.use_mpi_groups &&
           plateau.patience == 10 && lr_plateau.plateau.patience == 10 &&
           lr_plateau.factor == 0.1 && daso.global_skip == -1 && daso.batches_to_wait == -1 &&
           heat.warmup_epochs == 4 && heat.last_batch == -1 && loader.prefetch == 2;
}

// iso_param fills the fields that C names.
bool lists_arrays() {
    float value[2], gradient[2];
    double other[3];
    iso_reducer_param one = iso_param("one", value, 1, 4, gradient, 2);
    iso_reducer_param two = iso_param("two", other, 3, 5);
    return one.dtype == ISO_F32 && one.value == value && one.gradient == gradient &&
           one.count == 1 && one.layer == 4 && one.layers == 2 && two.dtype == ISO_F64 &&
           two.value == other && !two.gradient && two.count == 3 && two.layer == 5 &&
           two.layers == 0;
}

int run() {
    if (!lists_arrays()) throw std::runtime_error("iso_param does not fill an entry");
    if (!has_defaults()) throw std::runtime_error("a default is not what the header says");
    iso_comm *made = nullptr;
    check(iso_comm_create(MPI_COMM_WORLD, nullptr, &made));
    Owned<iso_comm> comm(made);
    double target = 1.0 + iso_comm_rank(made), mean = 0.5 * (1 + iso_comm_size(made));
    Trainer trainer(made, 1000);
    for (int i = 0; i < 60; i++) trainer.step(target, 0.5);
    double error = trainer.error(mean);
    if (iso_comm_rank(made) == 0) std::printf("error %g\n", error);
    return error < 1e-6 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    int provided, status = 1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    try {
        status = run();
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return status;
}
