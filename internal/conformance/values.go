package conformance

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// oddTexts are the OddKeys that Postgres can hold.
func oddTexts() []string {
	var texts []string
	for _, key := range OddKeys() {
		if key == strings.ToValidUTF8(key, "") && !strings.Contains(key, "\x00") {
			texts = append(texts, key)
		}
	}
	return texts
}

var numbers = []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MaxInt32, math.MinInt32, ratelimit.MaxEvents, 1_700_000_000_000_000}

func bigintBytes(n int64) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

func testParameters(t *testing.T, d *db) {
	for _, text := range oddTexts() {
		if got := d.cell("SELECT $1::text", text); got != text {
			t.Errorf("text %.20q came back as %.20q", text, got)
		}
	}
	for _, n := range numbers {
		if got := d.cell("SELECT $1::bigint", n); got != bigintBytes(n) {
			t.Errorf("bigint %d came back as %x", n, got)
		}
	}
	if got := d.rows("SELECT $2::text, $1::bigint, $3::text, $2::text", int64(7), "seven", ""); fmt.Sprint(got) != fmt.Sprint([][]string{{"seven", bigintBytes(7), "", "seven"}}) {
		t.Errorf("several parameters came back as %q", got)
	}
}

func testArrays(t *testing.T, d *db) {
	texts := oddTexts()
	long := make([]int64, 10000)
	for i := range long {
		long[i] = int64(i) - 5000
	}
	for _, array := range [][]string{{}, nil, {""}, {"NULL"}, {"", ""}, texts} {
		var want [][]string
		for i, text := range array {
			want = append(want, []string{text, bigintBytes(int64(i + 1))})
		}
		if got := d.rows("SELECT * FROM unnest($1::text[]) WITH ORDINALITY", array); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d texts came back otherwise: %.100q", len(array), got)
		}
		if got := d.cell("SELECT cardinality($1::text[])::bigint", array); got != bigintBytes(int64(len(array))) {
			t.Errorf("an array of %d texts has cardinality %x", len(array), got)
		}
	}
	for _, array := range [][]int64{{}, nil, {0}, numbers, long} {
		var want [][]string
		for i, n := range array {
			want = append(want, []string{bigintBytes(n), bigintBytes(int64(i + 1))})
		}
		if got := d.rows("SELECT * FROM unnest($1::bigint[]) WITH ORDINALITY", array); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d numbers came back otherwise", len(array))
		}
	}
	// As a store uses them: side by side, by subscript.
	sum := d.cell("SELECT sum(($2::bigint[])[i])::bigint FROM unnest($1::text[]) WITH ORDINALITY AS u(t, i)", []string{"a", "b", "c"}, []int64{10, 20, 30})
	if sum != bigintBytes(60) {
		t.Errorf("elements by subscript add up to %x, want 60", sum)
	}
}

func testNull(t *testing.T, d *db) {
	sql := "SELECT $1::bigint, $2::text, $3::bigint[], $4::text[]"
	want := []string{"NULL", "NULL", "NULL", "NULL"}
	for i := 0; i < 3; i++ { // more often than a server takes to choose a plan
		if got := d.rows(sql, nil, nil, nil, nil); fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("nothing but NULLs came back as %q", got)
		}
		if got := d.rows(sql, int64(1), "a", []int64{}, []string{}); got[0][0] != bigintBytes(1) || got[0][1] != "a" || got[0][2] == "NULL" || got[0][3] == "NULL" {
			t.Errorf("after NULLs, values came back as %q", got)
		}
	}
	// Columns of a fixed size, with values and without: rows of two lengths.
	sql = "SELECT n, $1::bigint, $1::bigint, $1::bigint, 1.5::float8 + $1::bigint, timestamptz 'epoch' + $1::bigint * interval '1 s' FROM generate_series(1::bigint, $2::bigint) n"
	for i := 0; i < 9; i++ {
		rows := int64(i % 3)
		var value any
		want := "NULL"
		if i == 4 || i == 5 {
			value, want = int64(1), bigintBytes(1)
		}
		got := d.rows(sql, value, rows)
		if len(got) != int(rows) {
			t.Fatalf("%d rows came back, want %d", len(got), rows)
		}
		for n, row := range got {
			if len(row) != 6 || row[0] != bigintBytes(int64(n+1)) || row[1] != want || row[3] != want || (row[5] == "NULL") != (value == nil) {
				t.Errorf("a row of %v came back as %q", value, row)
			}
		}
	}
}

func testColumns(t *testing.T, d *db) {
	got := d.rows(`SELECT 1::int, -2::bigint, 1.5::float8, timestamptz '2000-01-01 00:00:01+00', 'x'::text, NULL::text, true,
		ARRAY[timestamptz '2000-01-01 00:00:00.000002+00'], ''::text`)
	want := []string{"\x00\x00\x00\x01", bigintBytes(-2), bigintBytes(int64(math.Float64bits(1.5))), bigintBytes(1_000_000), "x", "NULL", "\x01",
		"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04\xa0\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x08" + bigintBytes(2), ""}
	if len(got) != 1 || len(got[0]) != len(want) {
		t.Fatalf("columns came as %q", got)
	}
	for i := range want {
		if got[0][i] != want[i] {
			t.Errorf("column %d came as %q, want %q", i, got[0][i], want[i])
		}
	}
	if got := d.rows("SELECT n, NULL::bigint FROM generate_series(1, 3) n"); len(got) != 3 || got[2][0] != "\x00\x00\x00\x03" || got[1][1] != "NULL" {
		t.Errorf("rows came as %q", got)
	}
}

// testRowsTogether lets a DB hand over rows one by one or together, as it likes:
// they are the same, in the same order.
func testRowsTogether(t *testing.T, d *db) {
	for _, c := range []struct {
		sql  string
		rows int
	}{
		{"SELECT n, -n FROM generate_series(1::bigint, $1) n", 3000},
		{"SELECT n, CASE WHEN n % 7 > 0 THEN -n END FROM generate_series(1::bigint, $1) n", 500},
		{"SELECT n, CASE WHEN n < $1 THEN -n END FROM generate_series(1::bigint, $1) n", 500},
		{"SELECT n, -n::int FROM generate_series(1::bigint, $1) n", 500},
		{"SELECT n, -n::float8 FROM generate_series(1::bigint, $1) n", 500},
		{"SELECT n, timestamptz 'epoch' + n * interval '1 microsecond' FROM generate_series(1::bigint, $1) n", 500},
		{"SELECT n, -n FROM generate_series(1::bigint, $1) n", 1},
		{"SELECT n, -n FROM generate_series(2::bigint, $1) n", 0},
	} {
		for again := 0; again < 3; again++ {
			var want, got [][]string
			one, many := query(&want, c.sql, int64(c.rows)), query(&got, c.sql, int64(c.rows))
			many.Rows = func(rows []byte) error {
				const column = "\x00\x00\x00\x0812345678"
				for ; len(rows) > 0; rows = rows[2*len(column):] {
					got = append(got, []string{string(rows[4:12]), string(rows[16:24])})
					if string(rows[:4]) != column[:4] || string(rows[12:16]) != column[:4] {
						t.Fatalf("%s: the lengths of a row are %q and %q", c.sql, rows[:4], rows[12:16])
					}
				}
				return nil
			}
			d.run(one, many)
			if len(got) != c.rows || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				t.Errorf("%s: %d rows came otherwise than %d by Row", c.sql, len(got), len(want))
			}
		}
	}
}
