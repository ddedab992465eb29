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

// train --help and its messages list them from a text that stands in the table of options.
Test(strategy, the_options_list_those_of_the_library) {
    const char *value = NULL;
    char names[200] = "";
    for (int i = 0; i < train_option_count; i++)
        if (strcmp(train_option_table[i].name, "--sync") == 0) value = train_option_table[i].value;
    for (int i = 0; i < iso_strategy_count(); i++) {
        strcat(names, i > 0 ? "|" : "");
        strcat(names, iso_strategy_at(i)->name);
        cr_assert(iso_strategy_at(i)->text && iso_strategy_at(i)->text[0]);
    }
    cr_assert_str_eq(value, names);
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
    refused(iso_strategy_find("nobody", &found), ISO_ERR_ARG, "|localsgd|postlocal|another");
    refused(iso_strategy_find(NULL, &found), ISO_ERR_ARG, "without a name");
    cr_assert_null(found);
    cr_assert_eq(train_options_parse(3, words, &options), ISO_ERR_ARG);
    cr_assert(strstr(train_error_text(), "--sync nobody is not supported: give blocking|"));
    cr_assert(strstr(train_error_text(), "|postlocal|another"), "says %s", train_error_text());
}

Test(strategy, names_and_texts_that_cannot_be) {
    char name[33], text[121];
    memset(name, 'n', 32), name[32] = 0;
    memset(text, 't', 120), text[120] = 0;
    refused(iso_strategy_register(NULL), ISO_ERR_ARG, "needs a name");
    refused(reg(NULL, NULL), ISO_ERR_ARG, "needs a name");
    refused(reg("", NULL), ISO_ERR_ARG, "needs a name");
    refused(reg("a|b", NULL), ISO_ERR_ARG, "no name of a strategy");
    refused(reg("a b", NULL), ISO_ERR_ARG, "no name of a strategy");
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
    refused(iso_settings_text(s, "f", "slow|fast", &text), ISO_ERR_ARG, "f=fas: give slow|fast");
    refused(iso_settings_text(s, "d", "slow|fast", &text), ISO_ERR_ARG, "d=: give slow|fast");
    refused(iso_settings_text(s, "g", "slow|fast|both", &text), ISO_ERR_ARG, "g=slow|fast: give");
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
    refused(iso_settings_parse(s, "b"), ISO_ERR_ARG, "\"b\" is no setting: write KEY=VALUE");
    refused(iso_settings_parse(s, "c=1,,d=2"), ISO_ERR_ARG, "\"\" is no setting");
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
    const char *wait = NULL, *policy = NULL;
    cr_assert_eq(iso_settings_int(s, "period", 1, 8, &period), ISO_OK);
    cr_assert_eq(iso_settings_number(s, "warmup", 0, 1, &warmup), ISO_OK);
    cr_assert_eq(iso_settings_text(s, "wait", NULL, &wait), ISO_OK);
    cr_assert_eq(iso_settings_text(s, "policy", NULL, &policy), ISO_OK);
    cr_assert(period == 6 && warmup == 0.12345678901234567);
    cr_assert_str_eq(wait, "auto");
    cr_assert_str_eq(policy, "fixed");
    cr_assert(iso_settings_has(s, "stability-level"));
    cr_assert(!iso_settings_has(s, "warmup-steps"), "it was not given");
    cr_assert(!iso_settings_has(s, "max-global-skips"), "it is of daso-heat");
    cr_assert(!iso_settings_has(s, "max-divergence"), "it is of another policy");
    cr_assert(!iso_settings_has(s, "dropout"), "it is of a model");
    iso_settings_destroy(&s);
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
