/* The hottest loops of the library, compiled: event ids, and objects by the thousand.
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

/* Lists, made item by item. */

typedef PyObject *(*Maker)(void *of, Py_ssize_t place);

static PyObject *
list_of(Py_ssize_t count, Maker make, void *of)
{
    PyObject *made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *item = make(of, i);
        if (item == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, i, item);
    }
    return made;
}

/* Return an item, which is borrowed: what is called for an item before may have made the list shorter since. */
static PyObject *
item_of(PyObject *list, Py_ssize_t place)
{
    if (place < PyList_GET_SIZE(list)) {
        return PyList_GET_ITEM(list, place);
    }
    PyErr_SetString(PyExc_RuntimeError, "a list has become shorter");
    return NULL;
}

static int
are_lists_of(PyObject *const *lists, Py_ssize_t number, Py_ssize_t count)
{
    for (PyObject *const *list = lists; list < lists + number; list++) {
        if (!PyList_CheckExact(*list) || PyList_GET_SIZE(*list) != count) {
            PyErr_SetString(PyExc_TypeError, "lists of one length are wanted");
            return 0;
        }
    }
    return 1;
}

/* Ids: the SHA-256 of byte forms; `trigger/events.py` says what those are. */

typedef struct {
    PyObject *starts;    /* a list */
    PyObject *columns;   /* a tuple of lists */
    PyObject *form;      /* gives the form of any value; None where the values are bytes already */
    PyObject *is_utc;    /* tells whether a zone is UTC */
    PyObject *utc;       /* the last zone that was; borrowed from the values, which outlive this */
    PyObject *begun_by;  /* the last start; neighbours with the same share its part */
    Hash begun;
} Ids;

static int
add_bytes(Hash *hash, PyObject *bytes)
{
    if (!PyBytes_CheckExact(bytes)) {
        PyErr_SetString(PyExc_TypeError, "bytes are wanted");
        return 0;
    }
    hash_add(hash, (const uint8_t *)PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
    return 1;
}

static int
add_other(const Ids *ids, Hash *hash, PyObject *value)
{
    PyObject *form = PyObject_CallOneArg(ids->form, value);
    int is_added = form != NULL && add_bytes(hash, form);
    Py_XDECREF(form);
    return is_added;
}

static int
add_integer(const Ids *ids, Hash *hash, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) {
        return add_other(ids, hash, value);
    }
    uint8_t digits[24], *first = digits + sizeof digits;
    unsigned long long rest = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    do {
        *--first = (uint8_t)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (number < 0) {
        *--first = '-';
    }
    hash_add(hash, first, (size_t)(digits + sizeof digits - first));
    return 1;
}

static int
is_plain(PyObject *text)
{
    if (!PyUnicode_IS_COMPACT_ASCII(text)) {
        return 0;
    }
    const Py_UCS1 *letter = PyUnicode_1BYTE_DATA(text), *end = letter + PyUnicode_GET_LENGTH(text);
    while (letter < end && *letter >= ' ' && *letter <= '~' && *letter != '\'' && *letter != '\\') {
        letter++;
    }
    return letter == end;
}

static int
add_text(const Ids *ids, Hash *hash, PyObject *value)
{
    if (!is_plain(value)) {
        return add_other(ids, hash, value);
    }
    hash_add(hash, (const uint8_t *)"'", 1);
    hash_add(hash, PyUnicode_1BYTE_DATA(value), (size_t)PyUnicode_GET_LENGTH(value));
    hash_add(hash, (const uint8_t *)"'", 1);
    return 1;
}

static int
add_moment(Ids *ids, Hash *hash, PyObject *value)
{
    PyObject *zone = PyDateTime_DATE_GET_TZINFO(value);
    if (zone != Py_None && zone != ids->utc) {
        PyObject *answer = PyObject_CallOneArg(ids->is_utc, zone);
        int is_utc = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_utc < 1) {
            return is_utc < 0 ? 0 : add_other(ids, hash, value);
        }
        ids->utc = zone;
    }
    unsigned int year = (unsigned int)PyDateTime_GET_YEAR(value);
    unsigned int microsecond = (unsigned int)PyDateTime_DATE_GET_MICROSECOND(value);
    const uint8_t bytes[10] = {
        (uint8_t)(year >> 8), (uint8_t)year,
        (uint8_t)PyDateTime_GET_MONTH(value), (uint8_t)PyDateTime_GET_DAY(value),
        (uint8_t)PyDateTime_DATE_GET_HOUR(value), (uint8_t)PyDateTime_DATE_GET_MINUTE(value),
        (uint8_t)PyDateTime_DATE_GET_SECOND(value),
        (uint8_t)(microsecond >> 16), (uint8_t)(microsecond >> 8), (uint8_t)microsecond,
    };
    hash_add(hash, bytes, sizeof bytes);
    return 1;
}

static int
add_value(Ids *ids, Hash *hash, PyObject *value)
{
    if (ids->form == Py_None) {
        return add_bytes(hash, value);
    }
    if (PyLong_CheckExact(value)) {
        return add_integer(ids, hash, value);
    }
    if (PyUnicode_CheckExact(value)) {
        return add_text(ids, hash, value);
    }
    return PyDateTime_CheckExact(value) ? add_moment(ids, hash, value) : add_other(ids, hash, value);
}

static PyObject *
id_at(void *of, Py_ssize_t place)
{
    Ids *ids = of;
    PyObject *start = item_of(ids->starts, place);
    if (start == NULL) {
        return NULL;
    }
    if (start != ids->begun_by) {
        hash_begin(&ids->begun);
        if (!add_bytes(&ids->begun, start)) {
            return NULL;
        }
        ids->begun_by = start;
    }
    Hash hash = ids->begun;
    for (Py_ssize_t column = 0; column < PyTuple_GET_SIZE(ids->columns); column++) {
        PyObject *value = item_of(PyTuple_GET_ITEM(ids->columns, column), place);
        if (value == NULL) {
            return NULL;
        }
        if (column > 0) {
            hash_add(&hash, (const uint8_t *)"\x1f", 1);
        }
        Py_INCREF(value);
        int is_added = add_value(ids, &hash, value);
        Py_DECREF(value);
        if (!is_added) {
            return NULL;
        }
    }
    PyObject *text = PyUnicode_New(8 * DIGEST_WORDS, 127);
    if (text != NULL) {
        hash_end(&hash, PyUnicode_1BYTE_DATA(text));
    }
    return text;
}

PyDoc_STRVAR(ids_doc,
    "ids(starts, columns, form, is_utc, /)\n--\n\n"
    "Return the SHA-256 of each start and the byte forms of the values behind it, in hexadecimal.\n\n"
    "What form() says is taken for values of unusual kinds; without it, all are bytes already.");

static PyObject *
ids(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 4 || !PyList_CheckExact(arguments[0]) || !PyTuple_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "ids() takes a list, a tuple of lists and two functions");
        return NULL;
    }
    Ids of = {.starts = arguments[0], .columns = arguments[1], .form = arguments[2], .is_utc = arguments[3]};
    Py_ssize_t count = PyList_GET_SIZE(of.starts);
    if (!are_lists_of(&PyTuple_GET_ITEM(of.columns, 0), PyTuple_GET_SIZE(of.columns), count)) {
        return NULL;
    }
    return list_of(count, id_at, &of);
}

/* Objects of a class with slots: the slots are set without a call for each, and read without a frame. */

enum { MOST_SLOTS = 16 };

static int
is_slot(PyObject *member)
{
    return Py_TYPE(member) == &PyMemberDescr_Type && ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX;
}

static PyObject **
slot_in(PyObject *object, PyObject *member)
{
    return (PyObject **)((char *)object + ((PyMemberDescrObject *)member)->d_member->offset);
}

/* Return what is in an object's slot, which is borrowed; NULL where it is empty, or the object has no such slot. */
static PyObject *
read_slot(PyObject *object, PyObject *member)
{
    return PyObject_TypeCheck(object, PyDescr_TYPE(member)) ? *slot_in(object, member) : NULL;
}

static PyObject *
lazy_item_in(PyObject *members, PyObject *object)
{
    PyObject *holder = read_slot(object, PyTuple_GET_ITEM(members, 0));
    PyObject *index = read_slot(object, PyTuple_GET_ITEM(members, 1));
    PyObject *items = holder == NULL ? NULL : read_slot(holder, PyTuple_GET_ITEM(members, 2));
    if (items != NULL && PyList_CheckExact(items) && index != NULL && PyLong_CheckExact(index)) {
        Py_ssize_t place = PyLong_AsSsize_t(index);
        if (place >= 0 && place < PyList_GET_SIZE(items)) {
            return Py_NewRef(PyList_GET_ITEM(items, place));
        }
        PyErr_Clear();
    }
    return PyObject_CallOneArg(PyTuple_GET_ITEM(members, 3), object);
}

static PyMethodDef LAZY_ITEM_IN = {"lazy_item_in", lazy_item_in, METH_O, NULL};

PyDoc_STRVAR(lazy_item_doc,
    "lazy_item(holder, index, items, otherwise, /)\n--\n\n"
    "Return a function that gives object.holder.items[object.index], by slots; where that is not there, otherwise(object).");

static PyObject *
lazy_item(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 4 || !is_slot(arguments[0]) || !is_slot(arguments[1]) || !is_slot(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "lazy_item() takes three slots and a function");
        return NULL;
    }
    PyObject *members = PyTuple_Pack(4, arguments[0], arguments[1], arguments[2], arguments[3]);
    PyObject *made = members == NULL ? NULL : PyCFunction_New(&LAZY_ITEM_IN, members);
    Py_XDECREF(members);
    return made;
}

typedef struct {
    PyTypeObject *kind;
    Py_ssize_t number;               /* of slots */
    Py_ssize_t offsets[MOST_SLOTS];
    PyObject *values[MOST_SLOTS];    /* for each slot a list with that of each object; borrowed */
} Instances;

static int
find_slot(PyTypeObject *kind, PyObject *name, Py_ssize_t *offset)
{
    PyObject *member = PyObject_GetAttr((PyObject *)kind, name);
    if (member == NULL) {
        return 0;
    }
    int fits = is_slot(member) && PyType_IsSubtype(kind, PyDescr_TYPE(member));
    *offset = fits ? ((PyMemberDescrObject *)member)->d_member->offset : 0;
    Py_DECREF(member);
    if (!fits) {
        PyErr_Format(PyExc_TypeError, "%U is no slot", name);
    }
    return fits;
}

static PyObject *
instance_at(void *of, Py_ssize_t place)
{
    const Instances *instances = of;
    PyObject *made = instances->kind->tp_alloc(instances->kind, 0);
    for (Py_ssize_t slot = 0; made != NULL && slot < instances->number; slot++) {
        PyObject *value = item_of(instances->values[slot], place); /* garbage may have been collected since we looked */
        if (value == NULL) {
            Py_CLEAR(made);
            break;
        }
        *(PyObject **)((char *)made + instances->offsets[slot]) = Py_NewRef(value);
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
    Instances of = {.kind = (PyTypeObject *)arguments[0]};
    Py_ssize_t place = 0;
    PyObject *name;
    while (PyDict_Next(arguments[1], &place, &name, &of.values[of.number])) {
        if (!find_slot(of.kind, name, &of.offsets[of.number++])) {
            return NULL;
        }
    }
    Py_ssize_t count = PyList_CheckExact(of.values[0]) ? PyList_GET_SIZE(of.values[0]) : -1;
    return are_lists_of(of.values, of.number, count) ? list_of(count, instance_at, &of) : NULL;
}

/* What is made by the thousand and soon gone, kept from the collector meanwhile; see `core/garbage.py`. */

static PyObject *
untrack_all(PyObject *module, PyObject *objects)
{
    (void)module;
    if (!PyList_CheckExact(objects)) {
        PyErr_SetString(PyExc_TypeError, "untrack_all() takes a list");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        if (PyObject_IS_GC(PyList_GET_ITEM(objects, i))) {
            PyObject_GC_UnTrack(PyList_GET_ITEM(objects, i));
        }
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(untrack_all_doc, "untrack_all(objects, /)\n--\n\nKeep the objects in a list from the collector.");

static PyObject *
track_held(PyObject *module, PyObject *objects)
{
    (void)module;
    if (!PyList_CheckExact(objects)) {
        PyErr_SetString(PyExc_TypeError, "track_held() takes a list");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        if (Py_REFCNT(object) > 1 && PyObject_IS_GC(object) && !PyObject_GC_IsTracked(object)) {
            PyObject_GC_Track(object);
        }
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(track_held_doc,
    "track_held(objects, /)\n--\n\nLeave to the collector those objects that something else holds besides this list.");

/* Records: a dict for each row of a result, and what is taken out of them again. */

typedef struct {
    PyObject *empty;       /* a dict with the names, which is copied for each row: that sets them all at once */
    PyObject *names;       /* a tuple */
    PyObject *converters;  /* a tuple with a function for each value, or None */
    Py_ssize_t width;      /* values in a row; those behind the named ones are not used */
    PyObject *rows;        /* a tuple */
} Records;

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
record_of(const Records *records, PyObject *row)
{
    if (PyTuple_GET_SIZE(row) != records->width) {
        PyErr_Format(PyExc_ValueError, "a row has %zd values, and not %zd", PyTuple_GET_SIZE(row), records->width);
        return NULL;
    }
    PyObject *made = PyDict_Copy(records->empty);
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(records->names); i++) {
        PyObject *value = converted(PyTuple_GET_ITEM(records->converters, i), PyTuple_GET_ITEM(row, i));
        if (value == NULL || PyDict_SetItem(made, PyTuple_GET_ITEM(records->names, i), value) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(value);
    }
    return made;
}

/* Keep the collector from a row in which it would find nothing: whoever holds no containers is in no cycle. */
static void
untrack(PyObject *row)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(row); i++) {
        if (PyObject_IS_GC(PyTuple_GET_ITEM(row, i))) {
            return;
        }
    }
    PyObject_GC_UnTrack(row);
}

static PyObject *
record_at(void *of, Py_ssize_t place)
{
    const Records *records = of;
    PyObject *row = PySequence_Tuple(PyTuple_GET_ITEM(records->rows, place)); /* the row itself, where it is one */
    PyObject *made = row == NULL ? NULL : record_of(records, row);
    if (made != NULL && PyTuple_CheckExact(row)) {
        untrack(row);
    }
    Py_XDECREF(row);
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
    Records of = {.empty = arguments[0], .names = arguments[1], .converters = arguments[2]};
    of.width = PyLong_AsSsize_t(arguments[3]);
    if (of.width < PyTuple_GET_SIZE(of.names)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a row has a value for each name");
        }
        return NULL;
    }
    of.rows = PySequence_Tuple(arguments[4]); /* converters are others' code, and may have the list */
    PyObject *made = of.rows == NULL ? NULL : list_of(PyTuple_GET_SIZE(of.rows), record_at, &of);
    Py_XDECREF(of.rows);
    return made;
}

typedef struct {
    PyObject *name;
    PyObject *items; /* a list: of records, or of values */
} Column;

static PyObject *
value_at(void *of, Py_ssize_t place)
{
    const Column *column = of;
    PyObject *record = Py_XNewRef(item_of(column->items, place)); /* one of a kind of its own may let go of the list */
    PyObject *value = record == NULL ? NULL : PyObject_GetItem(record, column->name);
    Py_XDECREF(record);
    return value;
}

static PyObject *
single_at(void *of, Py_ssize_t place)
{
    const Column *column = of;
    PyObject *made = PyDict_New(); /* before the value is borrowed: garbage may be collected here */
    PyObject *value = made == NULL ? NULL : item_of(column->items, place);
    if (made != NULL && (value == NULL || PyDict_SetItem(made, column->name, value) < 0)) {
        Py_CLEAR(made);
    }
    return made;
}

static PyObject *
list_by_name(PyObject *const *arguments, Py_ssize_t number, Maker make)
{
    if (number != 2 || !PyUnicode_CheckExact(arguments[0]) || !PyList_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "a name and a list are wanted");
        return NULL;
    }
    Column of = {.name = arguments[0], .items = arguments[1]};
    return list_of(PyList_GET_SIZE(of.items), make, &of);
}

PyDoc_STRVAR(column_doc, "column(name, records, /)\n--\n\nReturn the value that each record has of a name.");

static PyObject *
column(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    return list_by_name(arguments, number, value_at);
}

PyDoc_STRVAR(singles_doc, "singles(name, values, /)\n--\n\nReturn a dict for each value, in which the name has it.");

static PyObject *
singles(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    return list_by_name(arguments, number, single_at);
}

/* Rows as MySQL and MariaDB send them: the text of each value behind its length; `sql/mysql_wire.py` says more. */

enum { LONGEST_SHORT = 0xFA, NULL_VALUE = 0xFB, TWO_BYTES = 0xFC, THREE_BYTES = 0xFD, EIGHT_BYTES = 0xFE };

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Packet;

/* Return how long the next value is, -1 for NULL; -2 where there is none that is whole. */
static Py_ssize_t
next_length(Packet *packet)
{
    if (packet->at == packet->end) {
        return -2;
    }
    uint64_t length = *packet->at++;
    if (length == NULL_VALUE) {
        return -1;
    }
    if (length > LONGEST_SHORT) {
        int bytes = length == TWO_BYTES ? 2 : length == THREE_BYTES ? 3 : length == EIGHT_BYTES ? 8 : 0;
        if (bytes == 0 || packet->end - packet->at < bytes) {
            return -2;
        }
        length = 0;
        for (int i = 0; i < bytes; i++) {
            length |= (uint64_t)packet->at[i] << (8 * i);
        }
        packet->at += bytes;
    }
    return length > (uint64_t)(packet->end - packet->at) ? -2 : (Py_ssize_t)length;
}

/* Return a number that is written in so few digits that it cannot run over; NULL, without an error, for any other. */
static PyObject *
small_number(const uint8_t *text, Py_ssize_t length)
{
    long long number = 0;
    Py_ssize_t sign = length > 1 && text[0] == '-';
    if (length == 0 || length - sign > 18) {
        return NULL;
    }
    for (Py_ssize_t i = sign; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return NULL;
        }
        number = number * 10 + (text[i] - '0');
    }
    return PyLong_FromLongLong(sign ? -number : number);
}

static PyObject *
value_of(const uint8_t *text, Py_ssize_t length, PyObject *read)
{
    if (read == (PyObject *)&PyLong_Type) {
        PyObject *number = small_number(text, length);
        if (number != NULL || PyErr_Occurred()) {
            return number;
        }
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)text, length);
    if (bytes == NULL || read == Py_None) {
        return bytes;
    }
    PyObject *value = PyObject_CallOneArg(read, bytes);
    Py_DECREF(bytes);
    return value;
}

PyDoc_STRVAR(values_doc,
    "values(readers, packet, /)\n--\n\n"
    "Return a tuple of what each reader makes of a value's bytes: the bytes where it is None. EOFError where one is missing.");

static PyObject *
values(PyObject *module, PyObject *const *arguments, Py_ssize_t number)
{
    (void)module;
    if (number != 2 || !PyTuple_CheckExact(arguments[0]) || !PyBytes_CheckExact(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "values() takes a tuple and bytes");
        return NULL;
    }
    PyObject *readers = arguments[0];
    Packet packet = {.at = (const uint8_t *)PyBytes_AS_STRING(arguments[1])};
    packet.end = packet.at + PyBytes_GET_SIZE(arguments[1]);
    PyObject *made = PyTuple_New(PyTuple_GET_SIZE(readers));
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(readers); i++) {
        Py_ssize_t length = next_length(&packet);
        PyObject *value = NULL;
        if (length == -1) {
            value = Py_NewRef(Py_None);
        } else if (length >= 0) {
            value = value_of(packet.at, length, PyTuple_GET_ITEM(readers, i));
            packet.at += length;
        }
        if (value == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, i, value);
        }
    }
    if (made != NULL && packet.at != packet.end) {
        Py_CLEAR(made);
    }
    if (made == NULL && !PyErr_Occurred()) {
        PyErr_SetNone(PyExc_EOFError);
    }
    return made;
}

static PyMethodDef FUNCTIONS[] = {
    {"column", (PyCFunction)(void (*)(void))column, METH_FASTCALL, column_doc},
    {"ids", (PyCFunction)(void (*)(void))ids, METH_FASTCALL, ids_doc},
    {"instances", (PyCFunction)(void (*)(void))instances, METH_FASTCALL, instances_doc},
    {"lazy_item", (PyCFunction)(void (*)(void))lazy_item, METH_FASTCALL, lazy_item_doc},
    {"records", (PyCFunction)(void (*)(void))records, METH_FASTCALL, records_doc},
    {"singles", (PyCFunction)(void (*)(void))singles, METH_FASTCALL, singles_doc},
    {"track_held", track_held, METH_O, track_held_doc},
    {"untrack_all", untrack_all, METH_O, untrack_all_doc},
    {"values", (PyCFunction)(void (*)(void))values, METH_FASTCALL, values_doc},
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
