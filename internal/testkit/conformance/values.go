package conformance

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// oddTexts returns the OddKeys that are valid text in Postgres.
func oddTexts() []string {
	var texts []string
	for _, key := range OddKeys() {
		if key == strings.ToValidUTF8(key, "") && !strings.Contains(key, "\x00") {
			texts = append(texts, key)
		}
	}
	return texts
}

var numbers = []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MaxInt32, math.MinInt32,
	ratelimit.MaxEvents, 1_700_000_000_000_000}

func bigintBytes(n int64) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// testParameters checks that the server receives texts and numbers unchanged.
func testParameters(t *testing.T, d *db) {
	var statements []*pgdb.Statement
	var want []string
	for _, text := range oddTexts() {
		statements, want = append(statements, statement("SELECT $1::text", text)), append(want, text)
	}
	for _, n := range numbers {
		statements, want = append(statements, statement("SELECT $1::bigint", n)), append(want, bigintBytes(n))
	}
	for range 2 { // first not prepared, then prepared
		d.run(statements...)
		for i, s := range statements {
			if got := cells(t, s); !equal(got, want[i]) {
				t.Errorf("got %.20q, want %.20q", got, want[i])
			}
		}
	}
	got := d.queryCells("SELECT $2::text, $1::bigint, $3::text, $2::text", int64(7), "seven", "")
	if !equal(got, "seven", bigintBytes(7), "", "seven") {
		t.Errorf("several parameters: got %q, want seven, 7, an empty text, seven", got)
	}
}

// testArrays checks that the server receives arrays of texts and of numbers unchanged.
func testArrays(t *testing.T, d *db) {
	texts := oddTexts()
	long := make([]int64, 10000)
	for i := range long {
		long[i] = int64(i) - 5000
	}
	random := make([]string, 500)
	for i := range random {
		for range rand.IntN(9) {
			random[i] += []string{"a", `"`, `\`, ",", "{", "}", " ", "é", "\n", "\x01", "NULL"}[rand.IntN(11)]
		}
	}
	for _, array := range [][]string{{}, {""}, {"NULL"}, {"", ""}, texts, random} {
		var want []string
		for i, text := range array {
			want = append(want, text, bigintBytes(int64(i+1)))
		}
		got := d.queryCells("SELECT * FROM unnest($1::text[]) WITH ORDINALITY", array)
		if !equal(got, want...) {
			t.Errorf("%d texts: got %.100q, want %.100q", len(array), got, want)
		}
		n := d.queryCell("SELECT cardinality($1::text[])::bigint", array)
		if n != bigintBytes(int64(len(array))) {
			t.Errorf("cardinality %x, want %d", n, len(array))
		}
	}
	for _, array := range [][]int64{{}, {0}, numbers, long} {
		var want []string
		for i, n := range array {
			want = append(want, bigintBytes(n), bigintBytes(int64(i+1)))
		}
		got := d.queryCells("SELECT * FROM unnest($1::bigint[]) WITH ORDINALITY", array)
		if !equal(got, want...) {
			t.Errorf("%d numbers: got %.100q, want %.100q", len(array), got, want)
		}
	}
	// The store reads several arrays by the same subscript.
	sum := d.queryCell("SELECT sum(($2::bigint[])[i])::bigint "+
		"FROM unnest($1::text[]) WITH ORDINALITY AS u(t, i)", []string{"a", "b", "c"}, []int64{10, 20, 30})
	if sum != bigintBytes(60) {
		t.Errorf("elements by subscript add up to %x, want 60", sum)
	}
}

// testNull checks that nil and a nil slice are NULL, for a parameter of any type.
func testNull(t *testing.T, d *db) {
	sql := "SELECT $1::bigint, $2::text, $3::bigint[], $4::text[]"
	noElements := strings.Repeat("\x00", 11) // before the number of the type: bigint 0x14, text 0x19
	for range 3 {                            // first not prepared, then prepared
		for _, unnamed := range []bool{false, true} {
			for _, slices := range [][]any{{nil, nil}, {[]int64(nil), []string(nil)}} {
				s := statement(sql, nil, nil, slices[0], slices[1])
				s.Unnamed = unnamed
				if d.run(s); !equal(cells(t, s), "NULL", "NULL", "NULL", "NULL") {
					t.Errorf("got %q, want four NULLs", cells(t, s))
				}
			}
		}
		want := []string{bigintBytes(1), "a", noElements + "\x14", noElements + "\x19"}
		if got := d.queryCells(sql, int64(1), "a", []int64{}, []string{}); !equal(got, want...) {
			t.Errorf("after NULLs: got %q, want %q", got, want)
		}
	}
}

// testColumns checks that results have columns of all types in the binary format of Postgres.
func testColumns(t *testing.T, d *db) {
	got := d.queryCells(`SELECT 1::int, -2::bigint, 1.5::float8, timestamptz '2000-01-01 00:00:01+00',
		'x'::text, NULL::text, true,
		ARRAY[timestamptz '2000-01-01 00:00:00.000002+00'], ''::text`)
	want := []string{"\x00\x00\x00\x01", bigintBytes(-2), bigintBytes(int64(math.Float64bits(1.5))),
		bigintBytes(1_000_000), "x", "NULL", "\x01",
		"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04\xa0\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x08" +
			bigintBytes(2), ""}
	if !equal(got, want...) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// testEqualRows checks that results with many rows of equal length, and with rows of other lengths between
// them, are complete, although a DB may read many rows of equal length in one step.
func testEqualRows(t *testing.T, d *db) {
	minus := func(n int64) string { return bigintBytes(-n) }
	minusOrNull := func(isNull func(n int64) bool) func(n int64) string {
		return func(n int64) string {
			if isNull(n) {
				return "NULL"
			}
			return minus(n)
		}
	}
	for _, c := range []struct {
		second string // the second column; the first is n
		value  func(n int64) string
		rows   int64
	}{
		{second: "-n", value: minus, rows: 3000},
		{second: "CASE WHEN n % 7 > 0 THEN -n END", rows: 500,
			value: minusOrNull(func(n int64) bool { return n%7 == 0 })},
		{second: "CASE WHEN n < 500 THEN -n END", rows: 500,
			value: minusOrNull(func(n int64) bool { return n == 500 })},
		{second: "-n::int", rows: 500, value: func(n int64) string { return minus(n)[4:] }},
		{second: "repeat('x', (n % 5)::int)", rows: 500,
			value: func(n int64) string { return strings.Repeat("x", int(n%5)) }},
		{second: "-n", value: minus, rows: 1},
		{second: "-n"},
	} {
		var want []string
		for n := int64(1); n <= c.rows; n++ {
			want = append(want, bigintBytes(n), c.value(n))
		}
		for range 2 {
			got := d.queryCells("SELECT n, "+c.second+" FROM generate_series(1::bigint, $1) n", c.rows)
			if !equal(got, want...) {
				t.Errorf("n, %s: got %d columns, %.300q; want %.300q", c.second, len(got), got, want)
			}
		}
	}
}
