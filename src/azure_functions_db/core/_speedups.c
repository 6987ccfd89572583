/* The hottest loops of the library, compiled: the byte forms and the SHA-256 of event ids, and objects by the thousand.
 *
 * Each function does exactly what the Python beside its caller does, which is used where this could not be built.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <datetime.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__) && !defined(PORTABLE)
#define HAS_X86_INTRINSICS
#include <cpuid.h>
#include <immintrin.h>
#endif

/* SHA-256 (FIPS 180-4). Python's own begins and ends a hash in as much time as it takes to hash an id. */

enum { BLOCK = 64, DIGEST_WORDS = 8, LENGTH_BYTES = 8 };

typedef struct {
    uint32_t words[DIGEST_WORDS];
    uint8_t block[BLOCK];
    size_t used;      /* bytes in the block */
    uint64_t hashed;  /* bytes before the block */
} Hash;

static const uint32_t FIRST_WORDS[DIGEST_WORDS] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const uint32_t ROUND_KEYS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t
rotated(uint32_t word, int bits)
{
    return word >> bits | word << (32 - bits);
}

static inline uint32_t
big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void
compress(uint32_t state[DIGEST_WORDS], const uint8_t *block)
{
    uint32_t w[64];
    for (int t = 0; t < 16; t++) {
        w[t] = big_endian(block + 4 * t);
    }
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotated(w[t - 15], 7) ^ rotated(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotated(w[t - 2], 17) ^ rotated(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
        uint32_t s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
        uint32_t first = h + s1 + ((e & f) ^ (~e & g)) + ROUND_KEYS[t] + w[t];
        uint32_t second = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

#ifdef HAS_X86_INTRINSICS
/* The same by the processor's own instructions, in a fifth of the time. They want the words as (a b e f) and (c d g h). */
__attribute__((target("sha,sse4.1"))) static void
compress_by_instructions(uint32_t state[DIGEST_WORDS], const uint8_t *block)
{
    const __m128i byte_order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    const __m128i abef_before = _mm_alignr_epi8(cdab, efgh, 8);
    const __m128i cdgh_before = _mm_blend_epi16(efgh, cdab, 0xf0);
    __m128i abef = abef_before, cdgh = cdgh_before, w[4];
    for (int i = 0; i < 16; i++) { /* four rounds each; of w, the last sixteen words are needed */
        __m128i *now = &w[i & 3], last = w[(i + 3) & 3];
        if (i < 4) {
            *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), byte_order);
        }
        else {
            __m128i sum = _mm_sha256msg1_epu32(*now, w[(i + 1) & 3]);
            sum = _mm_add_epi32(sum, _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
            *now = _mm_sha256msg2_epu32(sum, last);
        }
        __m128i keyed = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(ROUND_KEYS + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0e));
    }
    __m128i feba = _mm_shuffle_epi32(_mm_add_epi32(abef, abef_before), 0x1b);
    __m128i dchg = _mm_shuffle_epi32(_mm_add_epi32(cdgh, cdgh_before), 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static int
has_instructions(void)
{
    unsigned int eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & 1u << 19)) { /* SSE 4.1 */
        return 0;
    }
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx & 1u << 29; /* SHA */
}
#endif

static void (*compressed)(uint32_t *, const uint8_t *) = compress;

static void
hash_begin(Hash *hash)
{
    memcpy(hash->words, FIRST_WORDS, sizeof FIRST_WORDS);
    hash->used = 0;
    hash->hashed = 0;
}

static void
hash_add(Hash *hash, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        size_t part = BLOCK - hash->used < length ? BLOCK - hash->used : length;
        memcpy(hash->block + hash->used, bytes, part);
        hash->used += part, bytes += part, length -= part;
        if (hash->used == BLOCK) {
            compressed(hash->words, hash->block);
            hash->hashed += BLOCK;
            hash->used = 0;
        }
    }
}

static void
hash_end(Hash *hash, Py_UCS1 *hexadecimal)
{
    uint64_t bits = (hash->hashed + hash->used) * 8;
    hash->block[hash->used++] = 0x80;
    if (hash->used > BLOCK - LENGTH_BYTES) {
        memset(hash->block + hash->used, 0, BLOCK - hash->used);
        compressed(hash->words, hash->block);
        hash->used = 0;
    }
    memset(hash->block + hash->used, 0, BLOCK - hash->used);
    for (int i = 0; i < LENGTH_BYTES; i++) {
        hash->block[BLOCK - 1 - i] = (uint8_t)(bits >> 8 * i);
    }
    compressed(hash->words, hash->block);
    for (int word = 0; word < DIGEST_WORDS; word++) {
        for (int shift = 28; shift >= 0; shift -= 4) {
            *hexadecimal++ = (Py_UCS1) "0123456789abcdef"[hash->words[word] >> shift & 15];
        }
    }
}

static PyObject *
digest(const Hash *begun, PyObject *head, PyObject *tail)
{
    PyObject *text = PyUnicode_New(8 * DIGEST_WORDS, 127);
    if (text != NULL) {
        Hash hash = *begun;
        hash_add(&hash, (const uint8_t *)PyBytes_AS_STRING(head), (size_t)PyBytes_GET_SIZE(head));
        hash_add(&hash, (const uint8_t *)PyBytes_AS_STRING(tail), (size_t)PyBytes_GET_SIZE(tail));
        hash_end(&hash, PyUnicode_1BYTE_DATA(text));
    }
    return text;
}

static int
are_lists_of_one_length(PyObject *first, PyObject *other)
{
    int are = PyList_CheckExact(first) && PyList_CheckExact(other) && PyList_GET_SIZE(first) == PyList_GET_SIZE(other);
    if (!are) {
        PyErr_SetString(PyExc_TypeError, "lists of one length are wanted");
    }
    return are;
}

PyDoc_STRVAR(digests_doc,
    "digests(starts, heads, tails, /)\n--\n\n"
    "Return the SHA-256 of each start, head and tail together, in hexadecimal; neighbours with one start share its part.");

static PyObject *
digests(PyObject *module, PyObject *const *lists, Py_ssize_t number)
{
    (void)module;
    if (number != 3) {
        PyErr_SetString(PyExc_TypeError, "digests() takes three lists");
        return NULL;
    }
    if (!are_lists_of_one_length(lists[0], lists[1]) || !are_lists_of_one_length(lists[0], lists[2])) {
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(lists[0]);
    PyObject *made = PyList_New(count), *begun_with = NULL;
    Hash begun;
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *start = PyList_GET_ITEM(lists[0], i);
        PyObject *head = PyList_GET_ITEM(lists[1], i), *tail = PyList_GET_ITEM(lists[2], i);
        if (!PyBytes_CheckExact(start) || !PyBytes_CheckExact(head) || !PyBytes_CheckExact(tail)) {
            PyErr_SetString(PyExc_TypeError, "digests() takes lists of bytes");
            Py_CLEAR(made);
            break;
        }
        if (start != begun_with) {
            hash_begin(&begun);
            hash_add(&begun, (const uint8_t *)PyBytes_AS_STRING(start), (size_t)PyBytes_GET_SIZE(start));
            begun_with = start;
        }
        PyObject *text = digest(&begun, head, tail);
        if (text == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, i, text);
    }
    return made;
}

/* Byte forms; `trigger/events.py` says what they are. */

typedef struct {
    PyObject *lead;    /* bytes before each form */
    PyObject *form;    /* gives the form of any value */
    PyObject *is_utc;  /* tells whether a zone is UTC */
    PyObject *utc;     /* the last zone that was; borrowed from the values, which outlive this */
} Forms;

static PyObject *
led(const Forms *forms, const char *bytes, Py_ssize_t length)
{
    Py_ssize_t lead = PyBytes_GET_SIZE(forms->lead);
    PyObject *made = PyBytes_FromStringAndSize(NULL, lead + length);
    if (made != NULL) {
        memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(forms->lead), (size_t)lead);
        memcpy(PyBytes_AS_STRING(made) + lead, bytes, (size_t)length);
    }
    return made;
}

static PyObject *
other_form(const Forms *forms, PyObject *value)
{
    PyObject *form = PyObject_CallOneArg(forms->form, value);
    if (form == NULL) {
        return NULL;
    }
    if (!PyBytes_CheckExact(form)) {
        PyErr_SetString(PyExc_TypeError, "a form is bytes");
        Py_DECREF(form);
        return NULL;
    }
    PyObject *made = led(forms, PyBytes_AS_STRING(form), PyBytes_GET_SIZE(form));
    Py_DECREF(form);
    return made;
}

static PyObject *
integer_form(const Forms *forms, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) {
        return other_form(forms, value);
    }
    char digits[24], *first = digits + sizeof digits;
    unsigned long long rest = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    do {
        *--first = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (number < 0) {
        *--first = '-';
    }
    return led(forms, first, digits + sizeof digits - first);
}

static PyObject *
text_form(const Forms *forms, PyObject *value)
{
    if (!PyUnicode_IS_COMPACT_ASCII(value)) {
        return other_form(forms, value);
    }
    Py_ssize_t length = PyUnicode_GET_LENGTH(value), lead = PyBytes_GET_SIZE(forms->lead);
    PyObject *made = PyBytes_FromStringAndSize(NULL, lead + length + 2);
    if (made == NULL) {
        return NULL;
    }
    char *to = PyBytes_AS_STRING(made);
    memcpy(to, PyBytes_AS_STRING(forms->lead), (size_t)lead);
    to += lead;
    *to++ = '\'';
    const Py_UCS1 *from = PyUnicode_1BYTE_DATA(value);
    for (Py_ssize_t i = 0; i < length; i++) {
        if (from[i] < ' ' || from[i] > '~' || from[i] == '\'' || from[i] == '\\') { /* is escaped */
            Py_DECREF(made);
            return other_form(forms, value);
        }
        *to++ = (char)from[i];
    }
    *to = '\'';
    return made;
}

static PyObject *
moment_form(Forms *forms, PyObject *value)
{
    PyObject *zone = PyDateTime_DATE_GET_TZINFO(value);
    if (zone != Py_None && zone != forms->utc) {
        PyObject *answer = PyObject_CallOneArg(forms->is_utc, zone);
        int is_utc = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_utc < 1) {
            return is_utc < 0 ? NULL : other_form(forms, value);
        }
        forms->utc = zone;
    }
    unsigned int year = (unsigned int)PyDateTime_GET_YEAR(value);
    unsigned int microsecond = (unsigned int)PyDateTime_DATE_GET_MICROSECOND(value);
    const char bytes[10] = {
        (char)(year >> 8), (char)year,
        (char)PyDateTime_GET_MONTH(value), (char)PyDateTime_GET_DAY(value),
        (char)PyDateTime_DATE_GET_HOUR(value), (char)PyDateTime_DATE_GET_MINUTE(value),
        (char)PyDateTime_DATE_GET_SECOND(value),
        (char)(microsecond >> 16), (char)(microsecond >> 8), (char)microsecond,
    };
    return led(forms, bytes, sizeof bytes);
}

PyDoc_STRVAR(byte_forms_doc,
    "byte_forms(values, lead, form, is_utc, /)\n--\n\n"
    "Return the byte form of each value behind what leads it; those of unusual kinds are asked for.");

static PyObject *
byte_forms(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 4 || !PyList_CheckExact(arguments[0]) || !PyBytes_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "byte_forms() takes a list, bytes and two functions");
        return NULL;
    }
    PyObject *values = arguments[0];
    Forms forms = {.lead = arguments[1], .form = arguments[2], .is_utc = arguments[3], .utc = NULL};
    PyObject *made = PyList_New(PyList_GET_SIZE(values));
    /* What is called for an unusual value must not make the list shorter under our feet. */
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(made); i++) {
        if (i >= PyList_GET_SIZE(values)) {
            PyErr_SetString(PyExc_RuntimeError, "the list has become shorter");
            Py_CLEAR(made);
            break;
        }
        PyObject *value = PyList_GET_ITEM(values, i), *form;
        Py_INCREF(value);
        if (PyLong_CheckExact(value)) {
            form = integer_form(&forms, value);
        }
        else if (PyUnicode_CheckExact(value)) {
            form = text_form(&forms, value);
        }
        else if (PyDateTime_CheckExact(value)) {
            form = moment_form(&forms, value);
        }
        else {
            form = other_form(&forms, value);
        }
        Py_DECREF(value);
        if (form == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, i, form);
    }
    return made;
}

/* Objects of a class with slots, their slots set without a call for each. */

enum { MOST_SLOTS = 16 };

typedef struct {
    Py_ssize_t offset;
    PyObject *values; /* a list with that of each object; borrowed */
} Slot;

static int
find_slot(PyTypeObject *kind, PyObject *name, Slot *slot)
{
    PyObject *member = PyObject_GetAttr((PyObject *)kind, name);
    if (member == NULL) {
        return 0;
    }
    int fits = Py_TYPE(member) == &PyMemberDescr_Type && PyType_IsSubtype(kind, PyDescr_TYPE(member)) &&
               ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX;
    slot->offset = fits ? ((PyMemberDescrObject *)member)->d_member->offset : 0;
    Py_DECREF(member);
    if (!fits) {
        PyErr_Format(PyExc_TypeError, "%U is no slot", name);
    }
    return fits;
}

static PyObject *
instance(PyTypeObject *kind, const Slot *slots, Py_ssize_t number, Py_ssize_t place)
{
    PyObject *made = kind->tp_alloc(kind, 0);
    if (made == NULL) {
        return NULL;
    }
    for (const Slot *slot = slots; slot < slots + number; slot++) {
        if (place >= PyList_GET_SIZE(slot->values)) { /* garbage may have been collected since we looked */
            PyErr_SetString(PyExc_RuntimeError, "a list has become shorter");
            Py_DECREF(made);
            return NULL;
        }
        *(PyObject **)((char *)made + slot->offset) = Py_NewRef(PyList_GET_ITEM(slot->values, place));
    }
    return made;
}

PyDoc_STRVAR(instances_doc,
    "instances(kind, columns, /)\n--\n\n"
    "Return objects of a class without calling it; columns has a list for each slot, with the values of all objects.");

static PyObject *
instances(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2 || !PyType_Check(arguments[0]) || !PyDict_CheckExact(arguments[1]) ||
        PyDict_GET_SIZE(arguments[1]) == 0 || PyDict_GET_SIZE(arguments[1]) > MOST_SLOTS) {
        PyErr_SetString(PyExc_TypeError, "instances() takes a class and a dict with a list for each slot");
        return NULL;
    }
    PyTypeObject *kind = (PyTypeObject *)arguments[0];
    Slot slots[MOST_SLOTS];
    Py_ssize_t used = 0, place = 0;
    PyObject *name, *values;
    while (PyDict_Next(arguments[1], &place, &name, &values)) {
        slots[used].values = values;
        if (!are_lists_of_one_length(slots[0].values, values) || !find_slot(kind, name, &slots[used++])) {
            return NULL;
        }
    }
    Py_ssize_t count = PyList_GET_SIZE(slots[0].values);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *object = instance(kind, slots, used, i);
        if (object == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, i, object);
    }
    return made;
}

/* Records: a dict for each row of a result. */

typedef struct {
    PyObject *empty;       /* a dict with the names, which is copied for each row: that sets them all at once */
    PyObject *names;       /* a tuple */
    PyObject *converters;  /* a tuple with a function for each value, or None */
    Py_ssize_t width;      /* values in a row; those behind the named ones are not used */
} Layout;

static PyObject *
converted(PyObject *convert, PyObject *value)
{
    if (convert == Py_None || (value == Py_None && Py_TYPE(convert) != &PyTuple_Type)) {
        return Py_NewRef(value);
    }
    if (convert == (PyObject *)&PyBool_Type) {
        int is_true = PyObject_IsTrue(value);
        return is_true < 0 ? NULL : PyBool_FromLong(is_true);
    }
    return PyObject_CallOneArg(PyTuple_CheckExact(convert) ? PyTuple_GET_ITEM(convert, 0) : convert, value);
}

static PyObject *
record(const Layout *layout, PyObject *row)
{
    if (PyTuple_GET_SIZE(row) != layout->width) {
        PyErr_Format(PyExc_ValueError, "a row has %zd values, and not %zd", PyTuple_GET_SIZE(row), layout->width);
        return NULL;
    }
    PyObject *made = PyDict_Copy(layout->empty);
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(layout->names); i++) {
        PyObject *value = converted(PyTuple_GET_ITEM(layout->converters, i), PyTuple_GET_ITEM(row, i));
        if (value == NULL || PyDict_SetItem(made, PyTuple_GET_ITEM(layout->names, i), value) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(value);
    }
    return made;
}

PyDoc_STRVAR(records_doc,
    "records(empty, names, converters, width, rows, /)\n--\n\n"
    "Return a dict for each row. A converter is called for values that are not None; one in a tuple, for all.");

static PyObject *
records(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 5 || !PyDict_CheckExact(arguments[0]) || !PyTuple_CheckExact(arguments[1]) ||
        !PyTuple_CheckExact(arguments[2]) || PyTuple_GET_SIZE(arguments[1]) > PyTuple_GET_SIZE(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "records() takes a dict, names, converters, a number and rows");
        return NULL;
    }
    Layout layout = {.empty = arguments[0], .names = arguments[1], .converters = arguments[2]};
    layout.width = PyLong_AsSsize_t(arguments[3]);
    if (layout.width < PyTuple_GET_SIZE(layout.names)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a row has a value for each name");
        }
        return NULL;
    }
    PyObject *rows = PySequence_Tuple(arguments[4]); /* converters are others' code, and may have the list */
    PyObject *made = rows == NULL ? NULL : PyList_New(PyTuple_GET_SIZE(rows));
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(rows); i++) {
        PyObject *row = PySequence_Tuple(PyTuple_GET_ITEM(rows, i)); /* the row itself, where it is one */
        PyObject *one = row == NULL ? NULL : record(&layout, row);
        Py_XDECREF(row);
        if (one == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, i, one);
    }
    Py_XDECREF(rows);
    return made;
}

static PyMethodDef FUNCTIONS[] = {
    {"byte_forms", (PyCFunction)(void (*)(void))byte_forms, METH_FASTCALL, byte_forms_doc},
    {"digests", (PyCFunction)(void (*)(void))digests, METH_FASTCALL, digests_doc},
    {"records", (PyCFunction)(void (*)(void))records, METH_FASTCALL, records_doc},
    {"instances", (PyCFunction)(void (*)(void))instances, METH_FASTCALL, instances_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    (void)module;
    PyDateTime_IMPORT;
    if (PyDateTimeAPI == NULL) {
        return -1;
    }
#ifdef HAS_X86_INTRINSICS
    if (has_instructions()) {
        compressed = compress_by_instructions;
    }
#endif
    return 0;
}

static PyModuleDef_Slot MODULE_SLOTS[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "azure_functions_db.core._speedups",
    .m_doc = "The hottest loops of the library, compiled.",
    .m_size = 0,
    .m_methods = FUNCTIONS,
    .m_slots = MODULE_SLOTS,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&MODULE);
}
