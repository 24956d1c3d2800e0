package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{5, 1, 3}, spread{3, 1, 5}},
		{[]float64{4, 1, 2, 9}, spread{3, 1, 9}},
	} {
		if s := spreadOf(c.values); s != c.want {
			t.Errorf("%v: %v, want %v", c.values, s, c.want)
		}
	}
	if s := spreadOf(nil); !math.IsNaN(s.median) || s.text(thousands) != "–" || s.only(thousands) != "–" {
		t.Errorf("of nothing: %v", s)
	}
	// Round by round: 1/2, 4/4 and 9/3.
	if s := ratioOf([]float64{1, 4, 9}, []float64{2, 4, 3}); s != (spread{1, 0.5, 3}) {
		t.Errorf("ratio %v", s)
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999.4: "999", 1000: "1,000", 1234567.5: "1,234,568", -12345: "-12,345", -0.2: "0"} {
		if text := thousands(v); text != want {
			t.Errorf("%v: %s, want %s", v, text, want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	for p, want := range map[float64]float64{0: 1, 50: 50, 99: 99, 99.5: 100, 100: 100} {
		if v := percentile(hundred, p); v != want {
			t.Errorf("percentile %v is %v, want %v", p, v, want)
		}
	}
	if !math.IsNaN(percentile(nil, 50)) {
		t.Error("a percentile of nothing")
	}
}

func TestRowsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range allNames() {
		if seen[name] {
			t.Errorf("%s occurs twice", name)
		}
		seen[name] = true
	}
	// Processes are known by the names of what configures them.
	specs := map[string]*proxySpec{}
	for _, row := range allRows() {
		if other := specs[row.proxy.name]; other != nil && other != row.proxy {
			t.Errorf("two proxies are named %s", row.proxy.name)
		}
		specs[row.proxy.name] = row.proxy
		if !seen[row.plain] {
			t.Errorf("%s is compared with %s, which is no row", row.name, row.plain)
		}
	}
}

// someResults are results of all rows, made up: each row is ten percent slower
// than the one before.
func someResults() *results {
	r := &results{machine: []string{"2 cores of <CPU> & so on"}}
	rate := 100000.0
	for _, row := range allRows() {
		for _, noise := range []float64{0.9, 1, 1.1} {
			row.samples = append(row.samples, sample{rate: rate * noise, p50: 1, p99: 2})
		}
		rate *= 0.9
		r.rows = append(r.rows, row)
	}
	rate = 100000
	for _, row := range allCoreRows() {
		row.samples = append(row.samples, coreSample{rate: rate, batch: 1})
		rate *= 0.95
		r.core = append(r.core, row)
	}
	r.pace = &paceResult{rate: 50000, added: spread{0.5, 0.4, 2}}
	r.allocations = &spread{6.5, 6, 7}
	r.memory = &memoryResult{keys: 1000000, bytesAKey: 219.6, before: 50 << 20, end: 53 << 20}
	return r
}

func TestTargets(t *testing.T) {
	want := []state{met, missed, missed, missed, missed, met, missed, missed, met, missed, met, met}
	found := targets(someResults())
	if len(found) != len(want) {
		t.Fatalf("%d targets, want %d", len(found), len(want))
	}
	for i, target := range found {
		if target.state != want[i] {
			t.Errorf("%s: %s is %v, want %v", target.what, target.value, target.state, want[i])
		}
	}
	for _, target := range targets(&results{}) {
		if target.state != notMeasured || target.value != "–" {
			t.Errorf("%s: %s, %v of a run without figures", target.what, target.value, target.state)
		}
	}
}

func TestReportNamesEveryRow(t *testing.T) {
	var text strings.Builder
	r := someResults()
	r.rows[2].samples[0].failed = 7
	writeReport(&text, r)
	for _, row := range r.rows {
		if !strings.Contains(text.String(), "\n| "+row.name+" ") {
			t.Errorf("no row %s", row.name)
		}
	}
	if !strings.Contains(text.String(), r.rows[2].name+": 7 requests got no decision") {
		t.Error("nothing about requests that failed")
	}
	// The lines of a table are of one length.
	length := 0
	for _, line := range strings.Split(text.String(), "\n") {
		if !strings.HasPrefix(line, "|") {
			length = 0
			continue
		}
		if n := len([]rune(line)); length == 0 {
			length = n
		} else if n != length {
			t.Errorf("%d characters instead of %d: %s", n, length, line)
		}
	}
}

func TestPictureIsWellFormed(t *testing.T) {
	for _, r := range []*results{someResults(), {machine: []string{"a machine"}}} {
		text := picture(r)
		bars := 0
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				bars++
			}
		}
		// The ground and three colours of the legend are rectangles, too.
		if want := len(r.rows) + len(r.core) + 4; bars != want {
			t.Errorf("%d rectangles, want %d", bars, want)
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Error("a number that is none")
		}
	}
}

func TestWrap(t *testing.T) {
	if lines := wrap("one two three four", 9); strings.Join(lines, "|") != "one two|three|four" {
		t.Errorf("%q", lines)
	}
}
