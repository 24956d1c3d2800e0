package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/schema"
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
	if s := spreadOf(nil); !math.IsNaN(s.median) || s.text(thousands) != "–" || s.only(thousands) != "–" {
		t.Errorf("of nothing: %v", s)
	}
	if s := pairs([]float64{1, 4, 9}, []float64{2, 4, 3}, difference); s != (spread{0, -1, 6}) {
		t.Errorf("differences of each round: %v", s)
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999.4: "999", 1000: "1,000", 1234567.6: "1,234,568", -12345: "-12,345"} {
		if text := thousands(v); text != want {
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
		if !seen[r.baseline] {
			t.Errorf("%s is compared with %s, which is no row", r.name, r.baseline)
		}
	}
}

// someResults are results of all rows. Each row is ten percent slower than the one
// before.
func someResults() *bench {
	b := &bench{machine: []string{"2 cores of <CPU> & so on"}, proxyRows: proxyRows(), coreRows: coreRows()}
	for _, rows := range [][]*row{b.proxyRows, b.coreRows} {
		v := 100000.0
		for _, r := range rows {
			for _, noise := range []float64{0.9, 1, 1.1} {
				r.samples = append(r.samples, sample{rate: v * noise, p50: 1, p99: 2, statements: 1})
			}
			v *= 0.9
		}
	}
	b.latency = &latencyResult{rate: 50000, added: spread{0.5, 0.4, 2}, addedLeased: spread{0.25, 0.2, 1}}
	b.allocations = &spread{6.5, 6, 7}
	b.memory = &memoryResult{bytesAKey: 219.6, before: 50 << 20, after: 53 << 20}
	b.identities = &identitiesResult{before: 250 << 20, after: 251 << 20, live: 9 << 20, remembered: 100000}
	b.flood = &floodResult{
		&flood{alone: []float64{2, 3}, mistyped: []float64{3, 3}, invented: []float64{3, 3.3}, rate: []float64{5000, 5000}, statements: []float64{150, 160}},
		&flood{alone: []float64{2}, mistyped: []float64{2}, invented: []float64{2}, rate: []float64{50000}, statements: []float64{201}},
	}
	return b
}

func TestTargets(t *testing.T) {
	var outcomes []string
	for _, target := range someResults().targets() {
		outcomes = append(outcomes, target.outcome)
	}
	want := "missed missed missed met missed missed missed missed met missed missed met missed missed met missed met met missed missed met met met met missed"
	if found := strings.Join(outcomes, " "); found != want {
		t.Errorf("%s, want %s", found, want)
	}
	for _, target := range (&bench{}).targets() {
		if target.outcome != "not measured" || target.measured != "–" {
			t.Errorf("%s: %s, %s in a run without figures", target.what, target.measured, target.outcome)
		}
	}
}

func TestRatiosByRateAndByCPU(t *testing.T) {
	b := &bench{proxyRows: []*row{
		{name: "plain", samples: []sample{{rate: 100, clientCPU: 10, wrkCPU: 5}, {rate: 50, clientCPU: 12, wrkCPU: 8}}},
		{name: "limited", samples: []sample{{rate: 50, clientCPU: 15, storeCPU: 9, wrkCPU: 6}, {rate: 40, clientCPU: 20, storeCPU: 12, wrkCPU: 8}}},
	}}
	if found, want := b.ratio("limited", "plain"), (spread{0.65, 0.5, 0.8}); found != want {
		t.Errorf("by rate %v, want %v", found, want)
	}
	if found, want := b.cpuRatio("limited", "plain"), (spread{0.5, 0.5, 0.5}); found != want {
		t.Errorf("by CPU %v, want %v", found, want)
	}
}

func TestReportHasAlignedTablesOfAllRows(t *testing.T) {
	b := someResults()
	b.proxyRows[2].samples[0].failed = 7
	var out strings.Builder
	b.report(&out)
	for _, want := range append(proxyRows(), coreRows()...) {
		if !strings.Contains(out.String(), "\n| "+want.name+" ") {
			t.Errorf("no row %s", want.name)
		}
	}
	if !strings.Contains(out.String(), b.proxyRows[2].name+": in one round 7 requests got no decision") {
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

func TestPictureIsWellFormed(t *testing.T) {
	for _, b := range []*bench{someResults(), {machine: []string{"a machine"}}} {
		text := b.picture()
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
		// The ground and the legend's four colours are rectangles, too.
		if want := len(b.proxyRows) + len(b.coreRows) + 5; bars != want {
			t.Errorf("%d rectangles, want %d", bars, want)
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Contains(text, "<no value>") {
			t.Error("a number that is none")
		}
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
	limit := &limitSpec{Algorithm: "gcra", Limit: "5 1m", Lease: "5%", Options: "durable", Zones: []string{"team", "everybody"}}
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
	if strings.Contains(configureCaddy(&proxy{spec: slidingCaddy}), "lease") {
		t.Error("the Caddy of the exact row has leases")
	}
}

// TestLeasedRowsFollowTheirExactRows: the picture shows the two side by side.
func TestLeasedRowsFollowTheirExactRows(t *testing.T) {
	rows := proxyRows()
	leasedRows := 0
	for i, r := range rows {
		exact, isLeased := strings.CutSuffix(r.name, leased)
		if isLeased != (r.proxy.limit != nil && r.proxy.limit.Lease != "") {
			t.Errorf("%s: the limit is %+v", r.name, r.proxy.limit)
		}
		if isLeased {
			leasedRows++
			if before := rows[i-1]; before.name != exact || before.keys != r.keys || before.proxy.limit.Limit != r.proxy.limit.Limit {
				t.Errorf("%s follows %s with another load", r.name, before.name)
			}
		}
	}
	if leasedRows != 4 {
		t.Errorf("%d rows with leases", leasedRows)
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
		var o policy.Outcome
		facts := policy.Facts{Tier: "anonymous", Path: "/"}
		if err := live.Decide(ctx, time.Minute, keyName(n), "", &facts, &o); err != nil || o.User+" "+o.Tier != want || (len(o.Hits) == 1) != (o.User != "") {
			t.Errorf("key %d: %+v, %v, want %s", n, o, err, want)
		}
	}
}
