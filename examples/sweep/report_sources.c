// SPDX-License-Identifier: MIT
// What the algorithms that the runs of a study used do, and the papers that they are from.
#include "report_impl.h"

#include <string.h>

typedef struct source {
    const char *option, *value; // as in the settings of a run; option NULL: of the report itself
    const char *what, *from;
} source;

#define DASO            "Coquelin et al., J. Big Data 9:14, 2022 (arXiv 2104.05588)"
#define DILOCO          "Douillard et al., 2023 (arXiv 2311.08105)"
#define PYTORCH_FORMULA " The formula is PyTorch's."

static const source sources[] = {
    {"sync", "blocking", "Synchronous SGD: averages gradients of each bucket, and waits at once.",
     "Buckets: Li et al., PyTorch Distributed, VLDB 2020"},
    {"sync", "explicit", "Synchronous SGD: averages all gradients after backward.",
     "Li et al., PyTorch Distributed, VLDB 2020"},
    {"sync", "lazy",
     "Synchronous SGD: averages gradients during backward, and waits for those of a layer when the "
     "next forward needs it.",
     "Götz et al., IEEE Big Data 2020; order of buckets: Jayarajan et al., MLSys 2019, and Peng et "
     "al., SOSP 2019"},
    {"sync", "daso",
     "Averages gradients inside a node in every step, and parameters between nodes every period, "
     "merged some steps later without waiting.",
     DASO},
    {"sync", "daso-heat", "DASO with the schedule and the merge of HeAT.", DASO},
    {"sync", "localsgd", "Every rank trains alone; parameters are averaged every period.",
     "Stich, Local SGD converges fast and communicates little, ICLR 2019"},
    {"sync", "postlocal", "Synchronous SGD in a warm-up, then local SGD.",
     "Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020"},
    {"sync", "slowmo", "Local SGD with slow momentum on the change of the mean.",
     "Wang et al., SlowMo, ICLR 2020 (arXiv 1910.00643)"},
    {"sync", "diloco", "Local SGD with Nesterov momentum on the change of the mean.", DILOCO},
    {"sync", "streaming-diloco",
     "DiLoCo in which fragments of the parameters take turns, and are merged without waiting.",
     "Douillard et al., 2025 (arXiv 2501.18512)"},
    {"sync", "overlap-localsgd",
     "Local SGD in which each rank is pulled to an anchor, the mean of all ranks a period earlier, "
     "without waiting.",
     "Wang et al., Overlap Local-SGD, ICASSP 2020 (arXiv 2002.09539)"},
    {"sync", "gossip", "Local SGD in which a rank averages with one other rank at a time.",
     "Assran et al., Stochastic Gradient Push, ICML 2019 (arXiv 1811.10792)"},
    {"sync", "async",
     "Local SGD in which the mean of all ranks is merged by each of them when it arrives, without "
     "waiting.",
     "Gan et al., BAGUA, VLDB 2022 (arXiv 2107.01499)"},
    {"sync", "server",
     "Local SGD in which a rank pushes its changes to servers, which are the ranks, and goes on "
     "with the sum of all changes, without waiting.",
     "Downpour SGD: Dean et al., NeurIPS 2012"},
    {"sync", "tournament",
     "Trainers meet in pairs, and each keeps the model that is better on held-out samples.",
     "LTFB: Jacobs et al., MLHPC 2017"},
    {"merge", "progress", "The mean of what was sent, plus the progress made since.",
     "CoCoD-SGD: Shen et al., 2019 (arXiv 1906.12043)"},
    {"merge", "heat", "A weighted mean of the current parameters and those that were sent.", DASO},
    {"outer", "sgd", "SGD with momentum on the change of the mean.",
     "Block momentum (BMUF): Chen and Huo, ICASSP 2016"},
    {"outer", "nesterov", "Nesterov momentum on the change of the mean.", DILOCO},
    {"outer", "slowmo", "Slow momentum on the change of the mean.", "Wang et al., ICLR 2020"},
    {"outer", "pull", "Parameters are pulled to an anchor.",
     "Zhang et al., EASGD, NeurIPS 2015; Wang et al., ICASSP 2020"},
    {"outer", "adam", "Adam on the change of the mean.", "FedAdam: Reddi et al., ICLR 2021"},
    {"policy", "plateau", "The period is halved when the loss of the epochs stops falling.", DASO},
    {"policy", "adaptive", "Period and wait follow measured times and the divergence.", "Isotherm"},
    {"policy", "qsr", "The period grows as the inverse square of the learning rate.",
     "Gu et al., A Quadratic Synchronization Rule, ICLR 2024"},
    {"policy", "adacomm", "The period falls with the loss.",
     "Wang and Joshi, Adaptive Communication Strategies, MLSys 2019"},
    {"wire", "bf16-feedback", "Gradients travel in bf16; rounding errors are added to the next.",
     "Error feedback: Seide et al., Interspeech 2014"},
    {"wire", "int8", "8-bit integers with a scale for each 256 elements, and error feedback.",
     "Gradients: Seide et al., Interspeech 2014; parameters: DoubleSqueeze, Tang et al., ICML "
     "2019"},
    {"wire", "fp8", "8-bit floats (E4M3) with a scale for each 128 elements, and error feedback.",
     "E4M3: OCP 8-bit Floating Point Specification 1.0, 2023; error feedback: Seide et al., "
     "Interspeech 2014"},
    {"wire", "dithering",
     "4 bits for each gradient, rounded at random to one of the two nearest values.",
     "QSGD: Alistarh et al., NeurIPS 2017"},
    {"wire", "onebit", "The sign of each gradient, and a scale for each 256; error feedback.",
     "Seide et al., Interspeech 2014; both ways: Zheng et al., NeurIPS 2019"},
    {"wire", "randomk", "Gradients chosen at random are summed; the others are added to the next.",
     "Stich et al., NeurIPS 2018"},
    {"wire", "adasum", "Gradients are summed, but what those of two ranks share counts once.",
     "Maleki et al., MLSys 2021"},
    {"wire", "int4", "4-bit floats with a scale for each 128 elements, and error feedback.",
     "Streaming DiLoCo: Douillard et al., 2025 (arXiv 2501.18512)"},
    {"wire", "topk",
     "The gradients, or changes of parameters, of largest magnitude travel, with error feedback.",
     "Gradients: Aji and Heafield, EMNLP 2017, and Stich et al., NeurIPS 2018; parameters: "
     "QSparse-local-SGD, Basu et al., NeurIPS 2019"},
    {"wire", "powersgd", "Matrices of gradients travel as products of low rank.",
     "Vogels et al., NeurIPS 2019"},
    {"powersgd-batched", "yes", "A whole bucket of gradients is one matrix.",
     "PyTorch, batched_powerSGD_hook; Vogels et al., NeurIPS 2019"},
    {"wire", "powersgd+bf16", "Matrices of gradients travel as products of low rank, in bf16.",
     "Vogels et al., NeurIPS 2019"},
    {"zero", "yes", "Each rank updates a share of the parameters.",
     "ZeRO stage 1: Rajbhandari et al., SC 2020 (arXiv 1910.02054)"},
    {"zero-stage", "1", "Each rank updates a share of the parameters.",
     "ZeRO stage 1: Rajbhandari et al., SC 2020 (arXiv 1910.02054)"},
    {"zero-stage", "2",
     "Each rank updates a share of the parameters, and keeps their gradients only.",
     "ZeRO stage 2: Rajbhandari et al., SC 2020 (arXiv 1910.02054)"},
    {"zero-stage", "3", "Each rank updates and keeps a share of the parameters.",
     "ZeRO stage 3: Rajbhandari et al., SC 2020 (arXiv 1910.02054)"},
    {"optimizer", "sgd", "Stochastic gradient descent with momentum." PYTORCH_FORMULA,
     "Sutskever et al., ICML 2013"},
    {"optimizer", "adam", "Adam." PYTORCH_FORMULA, "Kingma and Ba, ICLR 2015"},
    {"optimizer", "adamw", "Adam with decoupled weight decay." PYTORCH_FORMULA,
     "Loshchilov and Hutter, ICLR 2019"},
    {"optimizer", "adadelta", "Adadelta." PYTORCH_FORMULA, "Zeiler, 2012 (arXiv 1212.5701)"},
    {"optimizer", "adagrad", "Adagrad." PYTORCH_FORMULA, "Duchi et al., JMLR 12, 2011"},
    {"optimizer", "rmsprop", "RMSprop." PYTORCH_FORMULA,
     "Tieleman and Hinton, Coursera lecture 6.5, 2012"},
    {"optimizer", "lamb", "LAMB, Algorithm 2.", "You et al., ICLR 2020"},
    {"optimizer", "nadam", "Adam with Nesterov momentum." PYTORCH_FORMULA,
     "Dozat, ICLR workshop 2016"},
    {"schedule", "one-cycle", "The learning rate rises once and falls." PYTORCH_FORMULA,
     "Smith and Topin, 2019 (arXiv 1708.07120)"},
    {"schedule", "cosine", "The learning rate falls as a cosine." PYTORCH_FORMULA,
     "Loshchilov and Hutter, ICLR 2017"},
    {"schedule", "cosine-restarts", "Cosines with restarts." PYTORCH_FORMULA,
     "Loshchilov and Hutter, ICLR 2017"},
    {NULL, "confidence interval, t test",
     "Mean of n seeds &#177; t(0.975, n - 1) s / &#8730;n; paired by seed for differences.",
     "Student, Biometrika 6, 1908; t by the sums 26.7.3 and 26.7.4 of Abramowitz and Stegun"},
    {NULL, "adjusted p", "Holm's step-down procedure over the modes of a setup.",
     "Holm, Scand. J. Statist. 6, 1979"},
    {NULL, "colours", "A palette that people of all kinds of colour vision tell apart.",
     "Okabe and Ito, Color Universal Design, 2008"},
};

static bool is_used(const report_groups *all, const source *s) {
    char line[96];
    if (!s->option) return true;
    int length = snprintf(line, sizeof(line), "--%s %s\n", s->option, s->value);
    for (int64_t g = 0; g < all->count; g++) {
        const char *at = all->groups[g].first->settings;
        for (; at && *at; at += strcspn(at, "\n"), at += *at == '\n')
            if (strncmp(at, line, (size_t)length) == 0) return true;
    }
    return false;
}

void report_write_sources(FILE *to, const report_groups *all) {
    fputs("<h2>Algorithms and their sources</h2>\n<div class=\"wide\"><table><tr>"
          "<th class=\"text\">name</th><th class=\"text\">what it does</th>"
          "<th class=\"text\">source</th></tr>\n",
          to);
    for (size_t i = 0; i < sizeof(sources) / sizeof(*sources); i++) {
        const source *s = &sources[i];
        if (!is_used(all, s)) continue;
        fprintf(to, "<tr><td class=\"text\">%s%s%s%s</td><td class=\"text\">%s</td>",
                s->option ? "--" : "", s->option ? s->option : "", s->option ? " " : "", s->value,
                s->what);
        fprintf(to, "<td class=\"text\">%s</td></tr>\n", s->from);
    }
    fputs("</table></div>\n<p class=\"note\">docs/sync-modes.md has the formulas.</p>\n", to);
}
