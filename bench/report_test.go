package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
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

// textsOf are the texts of an SVG.
func textsOf(t *testing.T, svg string) (texts []string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			texts = append(texts, strings.TrimSpace(string(data)))
		}
	}
}

func TestPictureShowsEachLimiterInBothProxies(t *testing.T) {
	b := someResults()
	svg := string(b.picture())
	texts := textsOf(t, svg)
	for _, want := range []string{
		"Caddy, 64 connections", "Caddy, 256 connections", "Traefik, 64 connections", "Traefik, 256 connections", "no limit",
		"pg-ratelimit, exact", "pg-ratelimit, leased", "redis_rate, on Redis", "caddy-ratelimit, in memory", "its rateLimit, on Redis", "its rateLimit, in memory",
	} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q", want)
		}
	}
	for class, want := range map[string]int{"plain": 4, "peer": 8, "exact": 4, "leased": 4} {
		if n := strings.Count(svg, `<rect class="`+class+`"`); n != want {
			t.Errorf("%d bars of the kind %s, want %d", n, class, want)
		}
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error("a number that is none")
	}
}

// TestPictureWithoutSomeRows: the bars that are left stand beside their names.
func TestPictureWithoutSomeRows(t *testing.T) {
	b := someResults()
	b.proxyRows = slices.DeleteFunc(b.proxyRows, func(r *row) bool { return r.proxy.inRedis() || r.name == "Caddy + mholt/caddy-ratelimit, in memory" })
	svg := string(b.picture())
	if texts := textsOf(t, svg); slices.Contains(texts, "redis_rate, on Redis") || !slices.Contains(texts, "caddy-ratelimit, in memory") {
		t.Errorf("the texts are %q", texts)
	}
	if n := strings.Count(svg, `<rect class="peer"`); n != 3 {
		t.Errorf("%d bars of peers", n)
	}
}

// TestOrderOfRounds: a round has each row once, no row follows the same row in two rounds, rows
// that are neighbours in the table are near to each other, and no row is always early or late.
func TestOrderOfRounds(t *testing.T) {
	const rounds = 5
	for n := 1; n <= 80; n++ {
		follows := map[[2]int]bool{}
		sum := make([]float64, n) // of a row's places
		for round := 1; round <= rounds; round++ {
			rows := order(n, rounds, round)
			sorted := slices.Sorted(slices.Values(rows))
			for i := range n {
				if len(rows) != n || sorted[i] != i {
					t.Fatalf("round %d of %d rows: %v", round, n, rows)
				}
				sum[rows[i]] += float64(i)
				if place := slices.Index(rows, (rows[i]+1)%n); n >= rounds && max(i-place, place-i) > 3 {
					t.Errorf("round %d: row %d has place %d, and the next one has %d", round, rows[i], i, place)
				}
				if i > 0 && n >= rounds {
					pair := [2]int{rows[i-1], rows[i]}
					if follows[pair] && n%2 == 0 {
						t.Errorf("row %d of %d follows row %d twice", pair[1], n, pair[0])
					}
					follows[pair] = true
				}
			}
		}
		for i := range n {
			if mean := sum[i] / rounds / float64(n); n >= 20 && (mean < 0.4 || mean > 0.6) {
				t.Errorf("row %d of %d has the place %.2f of a round on average", i, n, mean)
			}
		}
	}
}

// TestRowThatFailsIsLeftOut: the others are measured in all rounds.
func TestRowThatFailsIsLeftOut(t *testing.T) {
	b := &bench{ctx: t.Context(), rounds: 3}
	rows := b.measureRounds([]*row{{name: "a"}, {name: "b"}, {name: "c"}}, func(r *row, round int) sample {
		if r.name == "b" && round == 2 {
			check(errors.New("it has ended"))
		}
		return sample{perSecond: float64(round)}
	})
	if len(rows) != 2 || rows[0].name != "a" || rows[1].name != "c" {
		t.Fatalf("these rows are left: %v", rows)
	}
	for _, r := range rows {
		if s := spreadOf(r.figures(perSecond)); s != (spread{2, 1, 3}) {
			t.Errorf("%s: %v", r.name, s)
		}
	}
	if found := strings.Join(b.complaints, "\n"); found != "Left out: b: it has ended" {
		t.Errorf("the report says %q", found)
	}
}

func TestConfidence(t *testing.T) {
	for rounds, want := range map[int]float64{1: 0, 3: 0.75, 5: 0.9375, 10: 0.998046875} {
		if found := confidence(rounds); found != want {
			t.Errorf("%d rounds: %v, want %v", rounds, found, want)
		}
	}
}

func TestDocsGetTheResults(t *testing.T) {
	b := someResults()
	b.ctx, b.rounds, b.postgres = t.Context(), 3, startDatabase(t.Context())
	defer func() { check(b.postgres.stop()) }()
	b.complain("Left out: a row: no redis-server on this machine\nand more")
	folder := t.TempDir()
	page := filepath.Join(folder, "performance.md")
	check(os.WriteFile(page, []byte("# Performance\n"+resultsBegin+"yesterday's\n"+resultsEnd+"## Next\n"), 0o644))
	for range 2 {
		if err := b.writeDocs(folder, []string{"-docs", folder, "-only", "^(a|b)$"}); err != nil {
			t.Fatal(err)
		}
	}
	text := string(must(os.ReadFile(page)))
	if !strings.HasPrefix(text, "# Performance\n"+resultsBegin) || !strings.HasSuffix(text, resultsEnd+"## Next\n") || strings.Contains(text, "yesterday") {
		t.Errorf("the page is\n%s", text)
	}
	for _, want := range []string{
		"`make bench BENCHFLAGS=\"-docs " + folder + " -only '^(a|b)$$'\"` on ",
		"\n|Caddy plain|100,000||||\n",
		"\n|Caddy + sliding_window, 1,000 keys|72,900|0.73 (0.73–0.73)|0.90 (0.90–0.90)||\n",
		"|Core: batches of 100",
		"\nLeft out: a row: no redis-server on this machine\n\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !bytes.Contains(must(os.ReadFile(filepath.Join(folder, "benchmark.svg"))), []byte("</svg>")) {
		t.Error("no picture")
	}
	check(os.WriteFile(page, []byte("# Performance\n"), 0o644))
	if err := b.writeDocs(folder, nil); err == nil {
		t.Error("no error for a page without a place for the results")
	}
}

// TestPagesHaveAPlaceForTheResults of `make bench`.
func TestPagesHaveAPlaceForTheResults(t *testing.T) {
	text := string(must(os.ReadFile(filepath.Join(root, "docs", "performance.md"))))
	_, rest, _ := strings.Cut(text, resultsBegin)
	if !strings.Contains(rest, resultsEnd) {
		t.Error("docs/performance.md has none")
	}
	if found := command([]string{"-docs", "../docs"}); found != "make bench" {
		t.Errorf("the command is %s", found)
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
		for _, other := range []*row{r.baseline, r.also, r.redis} {
			if other != nil && (other.load.connections != r.load.connections || other.proxy.traefik != r.proxy.traefik) {
				t.Errorf("%s is compared with %s", r.name, other.name)
			}
		}
		if r.redis != nil && !r.redis.proxy.inRedis() {
			t.Errorf("%s is compared with %s, which has no Redis", r.name, r.redis.name)
		}
		if (r.redis != nil) != (r.proxy.ours() && (r.bar != "" || strings.Contains(r.name, "headers both"))) {
			t.Errorf("%s is compared with a limiter on Redis: %t", r.name, r.redis != nil)
		}
	}
}

// TestRowsOfTheVersionBefore: each row of pg_ratelimit has one, with the same limit and load.
func TestRowsOfTheVersionBefore(t *testing.T) {
	rows := proxyRows()
	all := withBefore(proxyRows())
	for i, r := range all {
		if r.proxy.before {
			after := all[i-1]
			if after.before != r || r.name != after.name+older || r.load != after.load || r.proxy.limit != after.proxy.limit || r.baseline != after.baseline {
				t.Errorf("%s follows %s", r.name, after.name)
			}
			continue
		}
		if r.name != rows[0].name || (r.before != nil) != r.proxy.ours() {
			t.Errorf("%s stands for %s", r.name, rows[0].name)
		}
		rows = rows[1:]
	}
	if len(rows) > 0 {
		t.Errorf("%d rows are missing", len(rows))
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
