// SPDX-License-Identifier: MIT
// The list of strategies of synchronisation, and settings.
#include "common/balance.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(strategy, .fini = balance_check);
TestSuite(settings, .fini = balance_check);

static void refused(iso_status status, iso_status code, const char *words) {
    cr_assert_eq(status, code, "status %d", (int)status);
    cr_assert(strstr(iso_last_error()->message, words), "says %s", iso_last_error()->message);
}

static iso_status reg(const char *name, const char *text) {
    iso_strategy strategy = {.name = name, .text = text};
    return iso_strategy_register(&strategy);
}

// ---- The list -------------------------------------------------------------------------------------

Test(strategy, the_library_has_some) {
    cr_assert_eq(iso_strategy_count(), 15);
    for (int i = 0; i < iso_strategy_count(); i++)
        cr_assert(iso_strategy_at(i)->text && iso_strategy_at(i)->text[0]);
    cr_assert_null(iso_strategy_at(-1));
    cr_assert_null(iso_strategy_at(iso_strategy_count()));
}

Test(strategy, what_is_registered_is_found) {
    int user = 7, before = iso_strategy_count();
    char name[] = "mine", text[] = "my own";
    iso_strategy given = {.name = name, .text = text, .user = &user};
    const iso_strategy *found;
    cr_assert_eq(iso_strategy_find("mine", &found), ISO_ERR_ARG);
    cr_assert_eq(iso_strategy_register(&given), ISO_OK);
    memset(name, 'x', 4); // it was copied
    memset(text, 'x', 6);
    cr_assert_eq(iso_strategy_find("mine", &found), ISO_OK);
    cr_assert_str_eq(found->name, "mine");
    cr_assert_str_eq(found->text, "my own");
    cr_assert_eq(found->user, &user);
    cr_assert_eq(iso_strategy_count(), before + 1);
    cr_assert_eq(iso_strategy_at(before), found);
    // By the program, too.
    train_options options;
    char *words[] = {"train", "--sync", "mine"};
    cr_assert_eq(train_options_parse(3, words, &options), ISO_OK);
    cr_assert_str_eq(options.sync, "mine");
}

Test(strategy, what_is_unknown_is_answered_with_what_there_is) {
    const iso_strategy *found = NULL;
    train_options options;
    char *words[] = {"train", "--sync", "nobody"};
    cr_assert_eq(reg("another", NULL), ISO_OK);
    refused(iso_strategy_find("nobody", &found), ISO_ERR_ARG, "\"nobody\"");
    refused(iso_strategy_find("nobody", &found), ISO_ERR_ARG,
            "|localsgd|postlocal|slowmo|diloco|streaming-diloco|overlap-localsgd|gossip|async|"
            "server|tournament|another");
    refused(iso_strategy_find(NULL, &found), ISO_ERR_ARG, "needs the name");
    cr_assert_null(found);
    cr_assert_eq(train_options_parse(3, words, &options), ISO_ERR_ARG);
    cr_assert(strstr(train_error_text(), "--sync nobody is not supported: give blocking|"));
    cr_assert(
        strstr(train_error_text(), "|overlap-localsgd|gossip|async|server|tournament|another"),
        "says %s", train_error_text());
}

Test(strategy, names_and_texts_that_cannot_be) {
    char name[33], text[121];
    memset(name, 'n', 32), name[32] = 0;
    memset(text, 't', 120), text[120] = 0;
    refused(iso_strategy_register(NULL), ISO_ERR_ARG, "needs a name");
    refused(reg(NULL, NULL), ISO_ERR_ARG, "needs a name");
    refused(reg("", NULL), ISO_ERR_ARG, "needs a name");
    refused(reg("a|b", NULL), ISO_ERR_ARG, "not a valid strategy name");
    refused(reg("a b", NULL), ISO_ERR_ARG, "not a valid strategy name");
    refused(reg(name, NULL), ISO_ERR_ARG, "at most 31");
    refused(reg("long", text), ISO_ERR_ARG, "119");
    refused(reg("lines", "one\ntwo"), ISO_ERR_ARG, "one line");
    refused(reg("lazy", NULL), ISO_ERR_ARG, "already");
    cr_assert_eq(reg(name + 1, text + 1), ISO_OK);
    refused(reg(name + 1, NULL), ISO_ERR_ARG, "already");
}

Test(strategy, there_is_room_for_so_many) {
    char name[16];
    for (int i = 0; i < ISO_STRATEGIES_MAX; i++) {
        snprintf(name, sizeof(name), "number-%d", i);
        cr_assert_eq(reg(name, NULL), ISO_OK);
    }
    refused(reg("last", NULL), ISO_ERR_STATE, "one too many");
    const iso_strategy *found;
    cr_assert_eq(iso_strategy_find("number-31", &found), ISO_OK);
    cr_assert_str_eq(found->name, "number-31");
}

// ---- Settings -------------------------------------------------------------------------------------

static iso_settings *settings_of(const char *text) {
    iso_settings *settings = NULL;
    cr_assert_eq(iso_settings_create(&settings), ISO_OK);
    cr_assert_eq(iso_settings_parse(settings, text), ISO_OK);
    return settings;
}

Test(settings, are_read_as_what_is_asked_for) {
    iso_settings *s = settings_of("period=8,share=0.25,mode=fast,empty=,law=a=b");
    int64_t period = 0, none = 5;
    double share = 0;
    const char *mode = NULL, *empty = NULL, *law = NULL;
    cr_assert_eq(iso_settings_int(s, "period", 1, 8, &period), ISO_OK);
    cr_assert_eq(iso_settings_number(s, "share", 0, 1, &share), ISO_OK);
    cr_assert_eq(iso_settings_text(s, "mode", "slow|fast", &mode), ISO_OK);
    cr_assert_eq(iso_settings_text(s, "empty", NULL, &empty), ISO_OK);
    cr_assert_eq(iso_settings_text(s, "law", NULL, &law), ISO_OK);
    cr_assert_eq(iso_settings_int(s, "none", 0, 1, &none), ISO_OK);
    cr_assert_eq(iso_settings_int(NULL, "none", 0, 1, &none), ISO_OK);
    cr_assert(period == 8 && share == 0.25 && none == 5);
    cr_assert_str_eq(mode, "fast");
    cr_assert_str_eq(empty, "");
    cr_assert_str_eq(law, "a=b");
    cr_assert(iso_settings_has(s, "mode") && !iso_settings_has(s, "mod"));
    cr_assert_eq(iso_settings_check_used(s, "it"), ISO_OK);
    iso_settings_destroy(&s);
    cr_assert_null(s);
    iso_settings_destroy(&s);
}

Test(settings, wrong_values_are_named_with_their_key) {
    iso_settings *s = settings_of("a=9,b=x,c=1.5,d=,e=99999999999999999999,f=fas,g=slow|fast");
    int64_t n = 3;
    double x = 3;
    const char *text = NULL;
    refused(iso_settings_int(s, "a", 1, 8, &n), ISO_ERR_ARG,
            "a=9: give a whole number from 1 to 8");
    refused(iso_settings_int(s, "b", 1, 8, &n), ISO_ERR_ARG, "b=x: give a whole number");
    refused(iso_settings_int(s, "c", 1, 8, &n), ISO_ERR_ARG, "c=1.5: give a whole number");
    refused(iso_settings_int(s, "d", 0, 8, &n), ISO_ERR_ARG, "d=: give a whole number");
    refused(iso_settings_int(s, "e", 0, INT64_MAX, &n), ISO_ERR_ARG, "e=9999");
    refused(iso_settings_number(s, "c", 0, 1, &x), ISO_ERR_ARG, "c=1.5: give a number from 0 to 1");
    refused(iso_settings_number(s, "b", 0, 1, &x), ISO_ERR_ARG, "b=x: give a number");
    refused(iso_settings_text(s, "f", "slow|fast", &text), ISO_ERR_ARG,
            "f=fas is not supported: give slow|fast");
    refused(iso_settings_text(s, "d", "slow|fast", &text), ISO_ERR_ARG,
            "d= is not supported: give slow|fast");
    refused(iso_settings_text(s, "g", "slow|fast|both", &text), ISO_ERR_ARG,
            "g=slow|fast is not supported: give");
    cr_assert(n == 3 && x == 3 && !text);
    iso_settings_destroy(&s);
}

Test(settings, what_nobody_asked_for_is_an_error) {
    iso_settings *s = settings_of("period=8,perod=4");
    int64_t period;
    cr_assert_eq(iso_settings_int(s, "period", 1, 8, &period), ISO_OK);
    refused(iso_settings_check_used(s, "mine"), ISO_ERR_ARG, "mine has no setting \"perod\"");
    iso_settings_destroy(&s);
    cr_assert_eq(iso_settings_check_used(NULL, "mine"), ISO_OK);
}

Test(settings, texts_that_are_no_list) {
    iso_settings *s = settings_of("a=1");
    refused(iso_settings_parse(s, "b"), ISO_ERR_ARG, "\"b\" is not a setting: write KEY=VALUE");
    refused(iso_settings_parse(s, "c=1,,d=2"), ISO_ERR_ARG, "\"\" is not a setting");
    refused(iso_settings_parse(s, "=1"), ISO_ERR_ARG, "needs a key");
    refused(iso_settings_parse(s, "a=2"), ISO_ERR_ARG, "\"a\" is given twice");
    refused(iso_settings_add(s, "a", "2"), ISO_ERR_ARG, "\"a\" is given twice");
    iso_settings_destroy(&s);
}

// ---- Options of the program -----------------------------------------------------------------------

static iso_settings *settings_of_line(char **words, int count, iso_status expected) {
    train_options options;
    iso_settings *settings;
    cr_assert_eq(train_options_parse(count, words, &options), ISO_OK, "%s", train_error_text());
    cr_assert_eq(iso_settings_create(&settings), ISO_OK);
    cr_assert_eq(train_options_settings(&options, settings), expected);
    return settings;
}

Test(settings, are_the_options_of_the_chosen_strategy) {
    char *words[] = {"train", "--sync", "daso", "--warmup", "0.12345678901234567", "--period", "6"};
    iso_settings *s = settings_of_line(words, 7, ISO_OK);
    int64_t period = 0;
    double warmup = 0;
    cr_assert_eq(iso_settings_int(s, "period", 1, 8, &period), ISO_OK);
    cr_assert_eq(iso_settings_number(s, "warmup", 0, 1, &warmup), ISO_OK);
    cr_assert(period == 6 && warmup == 0.12345678901234567);
    cr_assert(!iso_settings_has(s, "wait"), "it was not given");
    cr_assert(!iso_settings_has(s, "dropout"), "it is of a model");
    iso_settings_destroy(&s);
}

// ---- Settings that a strategy publishes -----------------------------------------------------------

typedef struct own_values {
    int64_t speed, wait, rest;
    double share;
    const char *mode, *note;
    int turn;
    bool loud;
} own_values;
#define FIELD(name) offsetof(own_values, name)
static const iso_setting own_setting[] = {
    {"speed", ISO_SETTING_INTEGER, FIELD(speed), 1, 9, .initial = "3", .meaning = "how fast"},
    {"wait", ISO_SETTING_INTEGER, FIELD(wait), 0, 100, .word = "never", .initial = "never",
     .meaning = "how long"},
    {"rest", ISO_SETTING_INTEGER, FIELD(rest), 0, 100, .word = "never", .initial = "5",
     .meaning = "after how many"},
    {"share", ISO_SETTING_NUMBER, FIELD(share), 0, 0.5, .initial = "0.25", .meaning = "how much"},
    {"mode", ISO_SETTING_CHOICE, FIELD(mode), .choices = "slow|fast", .initial = "slow",
     .meaning = "how"},
    {"turn", ISO_SETTING_INDEX, FIELD(turn), .choices = "left|right", .initial = "left",
     .meaning = "where to", .of = "mode", .among = "fast"},
    {"note", ISO_SETTING_TEXT, FIELD(note), .choices = "TEXT", .meaning = "what for"},
    {"loud", ISO_SETTING_SWITCH, FIELD(loud), .meaning = "be heard", .instead = "note"},
};
enum { OWN_SETTINGS = sizeof(own_setting) / sizeof(own_setting[0]) };

static void register_own(void) {
    iso_strategy own = {.name = "own", .setting = own_setting, .setting_count = OWN_SETTINGS};
    cr_assert_eq(iso_strategy_register(&own), ISO_OK);
}

// What the strategy reads after the program took this line.
static own_values read_own(char **words, int count) {
    static char note[32], mode[32];
    own_values v = {.note = NULL};
    iso_settings *s = settings_of_line(words, count, ISO_OK);
    cr_assert_eq(iso_settings_read(s, own_setting, OWN_SETTINGS, &v), ISO_OK);
    cr_assert_eq(iso_settings_check_used(s, "own"), ISO_OK);
    // Texts are borrowed from the settings.
    snprintf(mode, sizeof(mode), "%s", v.mode);
    snprintf(note, sizeof(note), "%s", v.note ? v.note : "");
    v.mode = mode;
    if (v.note) v.note = note;
    iso_settings_destroy(&s);
    return v;
}

// What the words of the sentence are by which the program refuses a line.
static void refused_line(char **words, int count, const char *why) {
    train_options options;
    cr_assert_eq(train_options_parse(count, words, &options), ISO_ERR_ARG, "for %s", why);
    cr_assert(strstr(train_error_text(), why), "says %s", train_error_text());
}

Test(settings, of_a_strategy_of_ones_own_are_options) {
    register_own();
    char *none[] = {"train", "--sync", "own"};
    char *all[] = {"train",   "--sync", "own",    "--speed=9", "--wait",   "7",
                   "--share", "0.5",    "--mode", "fast",      "--turn",   "right",
                   "--note",  "a b",    "--lr",   "0.0625",    "--epochs", "2"};
    char *loud[] = {"train", "--sync", "own", "--loud"};
    own_values v = read_own(none, 3);
    cr_assert(v.speed == 3 && v.wait == -1 && v.share == 0.25 && v.turn == 0);
    cr_assert(!v.note && !v.loud);
    cr_assert_str_eq(v.mode, "slow");
    v = read_own(all, 18);
    cr_assert(v.speed == 9 && v.wait == 7 && v.share == 0.5 && v.turn == 1 && !v.loud);
    cr_assert_str_eq(v.mode, "fast");
    cr_assert_str_eq(v.note, "a b");
    cr_assert(read_own(loud, 4).loud);
}

Test(settings, out_of_range_are_refused_with_key_and_range) {
    register_own();
    char *high[] = {"train", "--sync", "own", "--speed", "10"};
    char *word[] = {"train", "--sync", "own", "--wait", "ever"};
    char *part[] = {"train", "--share", "0.6", "--sync", "own"};
    char *mode[] = {"train", "--sync", "own", "--mode", "middling"};
    char *turn[] = {"train", "--sync", "own", "--turn", "left"};
    char *lazy[] = {"train", "--speed", "3"};
    char *near[] = {"train", "--sync", "own", "--spead", "3"};
    char *twice[] = {"train", "--sync", "own", "--speed", "3", "--speed", "4"};
    char *both[] = {"train", "--sync", "own", "--loud", "--note", "x"};
    char *builtin[] = {"train", "--sync", "daso", "--period", "0"};
    char *option[] = {"train", "--epochs", "0"};
    refused_line(high, 5, "--speed 10: give a whole number from 1 to 9");
    refused_line(word, 5, "--wait ever: give a whole number from 0 to 100, or never");
    refused_line(part, 5, "--share 0.6: give a number from 0 to 0.5");
    refused_line(mode, 5, "--mode middling is not supported: give slow|fast");
    refused_line(turn, 5, "--turn needs --mode fast, but --mode is slow");
    refused_line(lazy, 3, "--speed needs --sync own, but --sync is lazy");
    refused_line(near, 5, "unknown option --spead: did you mean --speed?");
    refused_line(twice, 7, "--speed is given twice");
    refused_line(both, 6, "--loud replaces --note: give only one of them");
    refused_line(builtin, 5, "--period 0: give a whole number from 1 to 1e+12, or auto");
    refused_line(option, 3, "--epochs 0: give a whole number from 1 to 1000000");
}

// Ranks compare these lines, and a saved state keeps them.
Test(settings, stand_in_the_text_of_options) {
    static char text[TRAIN_OPTIONS_ROOM];
    register_own();
    char *words[] = {"train",   "--sync", "own",    "--speed", "007",
                     "--share", "0.50",   "--rest", "never"};
    train_options options;
    cr_assert_eq(train_options_parse(9, words, &options), ISO_OK);
    train_options_text(&options, true, text, sizeof(text));
    cr_assert(strstr(text, "\n--speed 7\n") && strstr(text, "\n--share 0.5\n"), "%s", text);
    cr_assert(strstr(text, "\n--wait never\n") && strstr(text, "\n--note not given\n"));
    cr_assert(strstr(text, "\n--rest never\n"), "the word, not the default: %s", text);
    cr_assert(!strstr(text, "--period"), "it is of other strategies");
}

Test(settings, are_helped_with_once) {
    char *text;
    size_t size;
    register_own();
    FILE *to = open_memstream(&text, &size);
    train_options_help(to);
    fclose(to);
    option_list list = {.count = 0};
    const iso_setting *s;
    for (int i = 0; i < train_option_count; i++)
        option_list_add(&list, &train_option_table[i].setting, 1);
    for (int i = 0; (s = train_setting_at(i)); i++) option_list_add(&list, s, 1);
    for (int i = 0; i < list.count; i++) {
        char line[80];
        if (!list.item[i]->key) continue;
        snprintf(line, sizeof(line), "\n  --%s", list.item[i]->key);
        int found = 0;
        for (const char *at = text; (at = strstr(at, line)); at += strlen(line))
            found += strchr(" \n", at[strlen(line)]) != NULL;
        cr_assert_eq(found, 1, "%s stands %d times", list.item[i]->key, found);
    }
    cr_assert(strstr(text, "(own, default 3)") && strstr(text, "--wait N|auto"));
    free(text);
}

// A fast one has no time for a share.
static iso_status check_own(const iso_strategy_context *context, char *warning, void *user) {
    own_values v = {.note = NULL};
    iso_status status = iso_settings_read(context->settings, own_setting, OWN_SETTINGS, &v);
    *(int64_t *)user = context->total_steps;
    if (status == ISO_OK && v.speed > 5 && v.share > 0.25)
        return iso_error_set(ISO_ERR_ARG, "--speed %lld leaves no --share", (long long)v.speed);
    if (v.loud) snprintf(warning, ISO_STRATEGY_WARNING, "--loud is not heard");
    return status;
}

Test(settings, are_checked_together_by_their_strategy) {
    int64_t steps = -1;
    iso_strategy own = {.name = "own",
                        .check = check_own,
                        .setting = own_setting,
                        .setting_count = OWN_SETTINGS,
                        .user = &steps};
    train_options options;
    char warning[ISO_STRATEGY_WARNING] = "old";
    char *words[] = {"train", "--sync", "own", "--speed", "6", "--share", "0.5", "--loud"};
    cr_assert_eq(iso_strategy_register(&own), ISO_OK);
    cr_assert_eq(train_options_parse(8, words, &options), ISO_OK, "%s", train_error_text());
    cr_assert_eq(train_options_check(&options), ISO_ERR_ARG);
    cr_assert_str_eq(train_error_text(), "--speed 6 leaves no --share");
    cr_assert_eq(steps, 0, "not known yet");
    words[4] = "5";
    cr_assert_eq(train_options_parse(8, words, &options), ISO_OK);
    cr_assert_eq(train_options_check(&options), ISO_OK, "%s", train_error_text());
    iso_strategy_context context = {.total_steps = 9, .settings = settings_of("loud=yes")};
    cr_assert_eq(iso_strategy_check(iso_strategy_at(15), &context, warning), ISO_OK);
    cr_assert_str_eq(warning, "--loud is not heard");
    cr_assert_eq(iso_strategy_check(iso_strategy_at(0), &context, warning), ISO_OK);
    cr_assert(steps == 9 && !warning[0], "the first strategy has nothing to check");
    iso_settings_destroy(&context.settings);
}

// What the check of a built-in strategy says of settings in a training of so many steps.
static const char *say_check(const char *name, const char *settings, int64_t steps) {
    static char said[ISO_STRATEGY_WARNING];
    const iso_strategy *strategy;
    iso_strategy_context context = {
        .total_steps = steps, .steps_per_epoch = 10, .settings = settings_of(settings)};
    cr_assert_eq(iso_strategy_find(name, &strategy), ISO_OK);
    iso_status status = iso_strategy_check(strategy, &context, said);
    iso_settings_destroy(&context.settings);
    return status < 0 ? iso_last_error()->message : said;
}

static void says(const char *name, const char *settings, int64_t steps, const char *words) {
    const char *said = say_check(name, settings, steps);
    cr_assert(words[0] ? strstr(said, words) != NULL : !said[0], "%s says %s", settings, said);
}

Test(settings, of_daso_are_checked_together) {
    says("daso", "period=4,wait=5", 0, "--wait 5 is longer than --period 4");
    says("daso", "policy=plateau,wait=9,max-period=8", 0,
         "--wait 9 is above --max-period 8, the limit of --policy plateau");
    says("daso", "warmup=0.7,cooldown=0.7", 0, "more than the whole run");
    says("daso", "warmup-steps=30,cooldown-steps=11", 0, "");
    says("daso", "warmup-steps=30,cooldown-steps=11", 40, "more than the 40 steps");
    says("daso", "warmup-steps=30", 20, "the warm-up of 20 steps leaves none");
    says("daso", "warmup-steps=20", 30, "");
    says("daso", "period=25,wait=25", 50,
         "--wait 25 is too long: no exchange would be merged in the 48 steps");
    says("daso", "wait=25", 50, "--wait 25 is too long: no exchange would be merged");
    says("overlap-localsgd", "", 12,
         "--period 8 is too long: no exchange would be merged"); // no --wait
    says("daso", "wait=19", 50, ""); // sent after 29 steps, merged after 48
    says("daso", "period=48", 50, "--period 48 is not shorter than the 48 steps");
    says("daso", "period=47", 50, "");
    says("daso", "wait=1", 8, "the automatic period of 8 is not shorter than the 6 steps");
    says("daso", "wait=1,period=4", 8, "");
    says("daso", "wait=1", 50, "");
    says("daso", "state=average,wire=int8", 0, "with --state average second moments travel, too");
    says("daso", "state=average,wire=f16", 0, "");
    says("localsgd", "levels=8:2,policy=qsr", 50, "--levels and --policy cannot be combined");
    says("daso-heat", "warmup-epochs=5", 10,
         "the warm-up of 5 epochs and the cool-down of 0 leave none");
    says("daso-heat", "warmup-epochs=5", 100, "");
    says("daso", "policy=plateau", 40, "the policy plateau will change nothing");
    says("daso", "policy=plateau", 500, "");
    says("localsgd", "period=50", 50, "--period 50 is not shorter than the 50 steps");
    says("localsgd", "period=49", 50, "");
    says("postlocal", "period=25", 50, "--period 25 is not shorter than the 25 steps");
    says("postlocal", "period=auto,warmup-steps=60", 50, "the warm-up of 50 steps leaves none");
}

Test(settings, a_table_that_cannot_be_is_refused) {
    iso_setting bad = {"speed", ISO_SETTING_INTEGER, .low = 1, .high = 9, .initial = "10"};
    iso_strategy own = {.name = "own", .setting = &bad, .setting_count = 1};
    refused(iso_strategy_register(&own), ISO_ERR_ARG, "give a whole number from 1 to 9");
    bad = (iso_setting){.key = "mode", .kind = ISO_SETTING_CHOICE};
    refused(iso_strategy_register(&own), ISO_ERR_ARG, "an unknown kind, or no choices");
    bad = (iso_setting){.key = "two words", .kind = ISO_SETTING_TEXT};
    refused(iso_strategy_register(&own), ISO_ERR_ARG, "needs a key");
}

Test(settings, of_ones_own_are_added_but_stand_for_no_option) {
    char *words[] = {"train", "--sync", "localsgd", "--sync-option", "period=4"};
    char *none[] = {"train", "--sync-option", "period=4,x=y"};
    const char *x = NULL;
    iso_settings *s = settings_of_line(words, 5, ISO_ERR_ARG);
    cr_assert(strstr(train_error_text(), "--sync-option period"), "says %s", train_error_text());
    iso_settings_destroy(&s);
    s = settings_of_line(none, 3, ISO_OK);
    cr_assert_eq(iso_settings_text(s, "x", NULL, &x), ISO_OK);
    cr_assert_str_eq(x, "y");
    iso_settings_destroy(&s);
}
