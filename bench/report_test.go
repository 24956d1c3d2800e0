package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

func TestSpreadIsMedianLowestHighest(t *testing.T) {
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
	if s := spreadOf(nil); s.measured() || s.text(0) != "–" {
		t.Errorf("of nothing: %v", s)
	}
	if s := pairs([]float64{1, 4, 9}, []float64{2, 4, 3}, difference); s != (spread{0, -1, 6}) {
		t.Errorf("differences of each round: %v", s)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.0", 999.44: "999.4", 1000: "1,000.0", 1234567.68: "1,234,567.7", -12345: "-12,345.0"} {
		if text := number(v, 1); text != want {
			t.Errorf("%v: %s, want %s", v, text, want)
		}
	}
}

func TestRowsHaveDifferentNames(t *testing.T) {
	rows := slices.Concat(proxyRows(), coreRows())
	seen := map[string]bool{"": true}
	for _, r := range rows {
		if seen[r.name] {
			t.Errorf("%q occurs twice", r.name)
		}
		seen[r.name] = true
	}
	for _, r := range rows {
		for _, other := range []*row{r.baseline, r.also} {
			if other != nil && !slices.Contains(rows, other) {
				t.Errorf("%s is compared with %s, which is no row", r.name, other.name)
			}
		}
	}
}

// someResults are results of all rows. Each row is ten percent slower than the one
// before.
func someResults() *bench {
	b := &bench{proxyRows: proxyRows(), coreRows: coreRows()}
	for _, rows := range [][]*row{b.proxyRows, b.coreRows} {
		v := 100000.0
		for _, r := range rows {
			for _, noise := range []float64{0.9, 1, 1.1} {
				r.samples = append(r.samples, sample{perSecond: v * noise, p50: 1, p99: 2, statements: 1})
			}
			v *= 0.9
		}
	}
	b.figure(nameMemory, "%d bytes", 220)
	return b
}

func TestRatiosByRateAndByCPU(t *testing.T) {
	plain := &row{samples: []sample{{perSecond: 100, cpuAll: 15}, {perSecond: 50, cpuAll: 20}}}
	limited := &row{samples: []sample{{perSecond: 50, cpuAll: 30}, {perSecond: 40, cpuAll: 40}}}
	if found, want := limited.than(plain), (spread{0.65, 0.5, 0.8}); found != want {
		t.Errorf("by rate %v, want %v", found, want)
	}
	if found, want := limited.thanByCPU(plain), (spread{0.5, 0.5, 0.5}); found != want {
		t.Errorf("by CPU %v, want %v", found, want)
	}
}

func TestReportHasAlignedTablesOfAllRows(t *testing.T) {
	b := someResults()
	b.proxyRows[2].samples[0][wrong] = 7
	var out strings.Builder
	b.report(&out)
	for _, want := range append(proxyRows(), coreRows()...) {
		if !strings.Contains(out.String(), "\n| "+want.name+" ") {
			t.Errorf("no row %s", want.name)
		}
	}
	if !strings.Contains(out.String(), b.proxyRows[2].name+", in one round: 7 requests had a wrong answer") {
		t.Error("nothing about requests that failed")
	}
	width := 0
	for line := range strings.Lines(out.String()) {
		n := len([]rune(line))
		switch {
		case !strings.HasPrefix(line, "|"):
			width = 0
		case width == 0:
			width = n
		case n != width:
			t.Errorf("%d characters instead of %d: %s", n, width, line)
		}
	}
}

func TestPictureHasEveryRow(t *testing.T) {
	b := someResults()
	text := string(b.picture())
	var words []string
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			words = append(words, strings.TrimSpace(string(data)))
		}
	}
	for _, r := range slices.Concat(b.proxyRows, b.coreRows) {
		if slices.Contains(words, r.name) != (r.baseline != nil) {
			t.Errorf("%s: a bar without a row to compare it with, or none with one", r.name)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Error("a number that is none")
	}
}

// TestRoundsAlternate: no row always follows the same one.
func TestRoundsAlternate(t *testing.T) {
	b := &bench{rounds: 3}
	var order []string
	b.measureRounds([]*row{{name: "a"}, {name: "b"}, {name: "c"}}, func(r *row, round int) sample {
		order = append(order, r.name)
		return sample{perSecond: float64(round)}
	})
	if found := strings.Join(order, ""); found != "abccbaabc" {
		t.Errorf("the order of the rows is %s", found)
	}
}

func TestParseWrk(t *testing.T) {
	r, err := parseWrk("Running 1s test\n...\nRESULT {\"requests\":5000,\"microseconds\":2000000,\"p50\":1500,\"p99\":9000,\"refused\":4,\"failed\":2}\n")
	if want := (wrkResult{Requests: 5000, Microseconds: 2e6, P50: 1500, P99: 9000, Refused: 4, Failed: 2}); err != nil || r != want || r.rate() != 2500 {
		t.Errorf("%+v, %v, want %+v and a rate of 2500", r, err, want)
	}
	for _, text := range []string{"", "unable to connect", "RESULT {", `RESULT {"requests":0,"microseconds":1}`} {
		if _, err := parseWrk(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestKeyName(t *testing.T) {
	for n, want := range map[int]string{0: "10.0.0.0", 255: "10.0.0.255", 65535: "10.0.255.255", 999999: "10.15.66.63"} {
		if key := keyName(n); key != want {
			t.Errorf("%d: %s, want %s", n, key, want)
		}
	}
}

func TestCaddyfileHasEveryZone(t *testing.T) {
	limit := &limitSpec{algorithm: "gcra", limit: "5 1m", lease: "5%", options: "durable", zones: []string{"team", "everybody"}}
	text := configureCaddy(&proxy{spec: &proxySpec{limit: limit}, address: "127.0.0.1:20001", dsn: "postgres://x"})
	for want, times := range map[string]int{"algorithm gcra\n": 3, "limit 5 1m\n": 3, "lease 5%\n": 3, "durable\n": 3, "zone ": 2, "on_error deny\n": 1} {
		if n := strings.Count(text, want); n != times {
			t.Errorf("%q occurs %d times, want %d:\n%s", want, n, times, text)
		}
	}
	text = configureCaddy(&proxy{spec: policyCaddy, address: "127.0.0.1:20001", dsn: "postgres://x"})
	if !strings.Contains(text, "pg_ratelimit {") || !strings.Contains(text, "api_key {http.request.header.X-Key}") || strings.Contains(text, "algorithm") {
		t.Errorf("the Caddy with a policy has this configuration:\n%s", text)
	}
	if strings.Contains(configureCaddy(&proxy{spec: plainCaddy}), "pg_ratelimit") {
		t.Error("the plain Caddy has a limit")
	}
	if strings.Contains(configureCaddy(&proxy{spec: exactCaddy}), "lease") {
		t.Error("the Caddy of the exact row has leases")
	}
}

// TestLeasedRowsFollowTheirExactRows: the picture shows the two side by side.
func TestLeasedRowsFollowTheirExactRows(t *testing.T) {
	rows := proxyRows()
	leasedRows := 0
	for i, r := range rows {
		isLeased := strings.Contains(r.name, leased)
		if isLeased != (r.proxy.limit != nil && r.proxy.limit.lease != "") {
			t.Errorf("%s: the limit is %+v", r.name, r.proxy.limit)
		}
		if isLeased {
			leasedRows++
			if before := rows[i-1]; before.name != strings.Replace(r.name, leased, "", 1) || before.load != r.load || before.proxy.limit.limit != r.proxy.limit.limit {
				t.Errorf("%s follows %s with another load", r.name, before.name)
			}
		}
	}
	if leasedRows != 8 {
		t.Errorf("%d rows with leases", leasedRows)
	}
}

// TestRowsWithMoreConnections are compared with rows that have as many.
func TestRowsWithMoreConnections(t *testing.T) {
	for _, r := range proxyRows() {
		if want := map[bool]int{false: 64, true: 256}[strings.HasSuffix(r.name, wide)]; r.load.connections != want {
			t.Errorf("%s has %d connections", r.name, r.load.connections)
		}
		for _, other := range []*row{r.baseline, r.also} {
			if other != nil && other.load.connections != r.load.connections {
				t.Errorf("%s is compared with %s", r.name, other.name)
			}
		}
	}
}

// TestPolicyRows fills the tables of a policy with fewer keys, and finds those that loads send.
func TestPolicyRows(t *testing.T) {
	ctx := t.Context()
	dsn := cluster.Open(t)
	query(ctx, dsn, schema.File, policyRowsOf(70000))
	live := must(policy.New(must(pgxdb.Open(dsn, pgxdb.Options{})), policy.Settings{DisableMigration: true}))
	defer live.Close()
	for n, want := range map[int]string{0: "user-0 free", 1: "user-1 pro", 65539: "user-65539 pro", 69999: "user-69999 free", 70000: " anonymous"} {
		var o policy.Verdict
		facts := policy.Facts{Tier: "anonymous", Path: "/"}
		if err := live.Evaluate(ctx, time.Minute, keyName(n), "", &facts, &o); err != nil || o.User+" "+o.Tier != want || (len(o.Hits) == 1) != (o.User != "") {
			t.Errorf("key %d: %+v, %v, want %s", n, o, err, want)
		}
	}
}
