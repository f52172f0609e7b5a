/* Prints one value of the JSON on standard input: json_get KEY-OR-INDEX... An object or array prints its size as "#n".
 * Exits 1 if the input is not JSON or the value is not there, so a test that uses it fails. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static int print_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return printf("#%zu\n", json_object_size(v));
    case JSON_ARRAY: return printf("#%zu\n", json_array_size(v));
    case JSON_STRING: return printf("%s\n", json_string_value(v));
    case JSON_INTEGER: return printf("%lld\n", (long long)json_integer_value(v));
    case JSON_REAL: return printf("%.9g\n", json_real_value(v));
    case JSON_TRUE: return printf("true\n");
    case JSON_FALSE: return printf("false\n");
    case JSON_NULL: return printf("null\n");
    }
    return -1;
}

int main(int argc, char **argv)
{
    json_error_t problem;
    json_t      *root = json_loadf(stdin, 0, &problem);
    json_t      *v = root;

    if (!root) {
        (void)fprintf(stderr, "json_get: not JSON: %s\n", problem.text);
        return 1;
    }
    for (int i = 1; i < argc && v; i++)
        v = json_is_array(v) ? json_array_get(v, strtoul(argv[i], NULL, 10)) : json_object_get(v, argv[i]);
    int failed = !v || print_value(v) < 0;
    json_decref(root);
    return failed;
}
