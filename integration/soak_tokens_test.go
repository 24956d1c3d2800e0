//go:build soak

package integration

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
)

const (
	// tokenBudget is used up after about two thirds of the test.
	tokenBudget  = 150_000
	tokenClients = 500
	// reservedTokens is the output that each request names. Some answers cost more.
	reservedTokens = 30
	mostTokens     = 60
)

// answer is an answer of the model.
type answer struct {
	kind    string // json, stream, broken or cut; the client leaves a cut one
	tokens  int64  // what it costs, if it was sent to its end
	sent    int64  // events of a stream that were sent
	status  int    // 0 if the client got no whole answer
	decided bool   // the proxy had a decision: the response has the limit's fields
	proxy   int
	asked   time.Time // when the client asked
	done    time.Time // when the client had the answer
	wait    time.Duration
}

// tokenModel is the upstream and the clients' record of all requests.
type tokenModel struct {
	mu      sync.Mutex
	random  *rand.Rand
	answers map[string]*answer
}

// begin returns a new request's name and its answer.
func (m *tokenModel) begin(proxy int) (string, *answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &answer{kind: []string{"json", "json", "stream", "broken", "cut"}[m.random.IntN(5)],
		tokens: 1 + m.random.Int64N(mostTokens), proxy: proxy}
	name := fmt.Sprint("r", len(m.answers))
	m.answers[name] = a
	return name, a
}

// body is the body of each request: its estimated input is 10 tokens.
var body = fmt.Sprintf(`{"max_tokens":%d,"messages":["xxxxx"]}`, reservedTokens-10)

// ServeHTTP answers. A stream has an event for each token. A broken one ends without its usage after half of
// them, and so costs these, and the estimate of its input.
func (m *tokenModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	m.mu.Lock()
	a := m.answers[r.Header.Get("X-User")]
	pause := time.Duration(300+m.random.IntN(1200)) * time.Millisecond
	m.mu.Unlock()
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, a.tokens/2,
		a.tokens-a.tokens/2)
	if a.kind == "json" {
		time.Sleep(pause)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[],%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range a.tokens {
		if a.kind == "broken" && i == a.tokens/2 {
			time.Sleep(50 * time.Millisecond) // what was sent arrives
			panic(http.ErrAbortHandler)
		}
		m.mu.Lock()
		a.sent++ // before the proxy can have it
		m.mu.Unlock()
		_, err := fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n")
		if err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil || r.Context().Err() != nil {
			return
		}
		time.Sleep(pause / time.Duration(a.tokens))
	}
	_, _ = fmt.Fprintf(w, "data: {\"choices\":[],%s}\n\ndata: [DONE]\n\n", usage)
}

// ask sends one request, and records how it ended. The client of a cut stream leaves after a while.
func (m *tokenModel) ask(ctx context.Context, client *http.Client, proxy int, url string) time.Duration {
	name, a := m.begin(proxy)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if a.kind == "cut" {
		time.AfterFunc(700*time.Millisecond, cancel)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return time.Second
	}
	request.Header.Set("X-User", name)
	a.asked = time.Now() // check reads it at the end
	response, err := client.Do(request)
	if err != nil {
		return 100 * time.Millisecond
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil || a.kind == "broken" && a.sent == a.tokens/2 {
		a.status = response.StatusCode
	}
	a.decided = response.Header.Get("X-RateLimit-Limit-Tokens") != ""
	a.done = time.Now()
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		a.wait = time.Duration(seconds) * time.Second
	}
	if a.wait == 0 && a.status != http.StatusOK { // such as a Traefik without its routes yet
		return 100 * time.Millisecond
	}
	return min(a.wait, time.Second)
}

// tokenBed has two proxies, and a primary with its synchronous standby.
type tokenBed struct {
	t       *testing.T
	servers [2]*cluster.Cluster
	proxies []proxy
	starts  []func() proxy
	killed  [2][]time.Time
	nobody  []int64 // the units of rows without a user
	unnamed int     // the answers that compare has taken for one of them
}

// startTokenBed starts the servers and the proxies.
func startTokenBed(t *testing.T, upstream string) *tokenBed {
	b := &tokenBed{t: t}
	for i := range b.servers {
		b.servers[i] = cluster.Private(t, replicating)
	}
	if err := b.servers[1].Follow(t.Context(), b.servers[0]); err != nil {
		t.Fatal(err)
	}
	cluster.Execute(t, b.servers[0].DSN("postgres"), "ALTER SYSTEM SET synchronous_standby_names = '*'")
	cluster.Execute(t, b.servers[0].DSN("postgres"), "SELECT pg_reload_conf()")
	dsn := fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&"+
		"target_session_attrs=read-write", b.servers[0].Port(), b.servers[1].Port())
	routes := []route{{path: "/", backend: upstream, limit: object{"prefix": "budget", "key": "all",
		"limit": fmt.Sprint(tokenBudget, " 60d"), "algorithm": "fixed_window", "unit": "tokens",
		"output": 100, "timeout": "500ms", "onError": "allow", "policy": object{"user": "{header.X-User}"}}}}
	address := harness.FreeAddress(t)
	tr := startTraefik(t, routes, "DATABASE_URL="+dsn)
	b.starts = []func() proxy{
		func() proxy { return *startCaddyOn(t, address, caddyfile(address, dsn, routes)) },
		func() proxy { tr.start(t); return proxy{tr.Process, tr.url} },
	}
	b.proxies = []proxy{b.starts[0](), {tr.Process, tr.url}}
	return b
}

// kill kills a proxy and starts it again.
func (b *tokenBed) kill(i int) {
	if err := b.proxies[i].Kill(); err != nil {
		b.t.Error(err)
	}
	b.killed[i] = append(b.killed[i], time.Now())
	b.proxies[i].Process = b.starts[i]().Process
}

// faults makes the faults: three kills, an outage of five seconds, and a failover to the synchronous standby.
func (b *tokenBed) faults() {
	time.Sleep(5 * time.Second)
	b.kill(0)
	time.Sleep(4 * time.Second)
	if err := b.servers[0].Pause(); err != nil {
		b.t.Error(err)
	}
	time.Sleep(5 * time.Second)
	if err := b.servers[0].Resume(); err != nil {
		b.t.Error(err)
	}
	time.Sleep(5 * time.Second)
	b.kill(1)
	time.Sleep(5 * time.Second)
	if err := b.servers[0].Kill(); err != nil {
		b.t.Error(err)
	}
	for _, sql := range []string{"SELECT pg_promote()", "ALTER SYSTEM RESET synchronous_standby_names",
		"SELECT pg_reload_conf()"} {
		if err := runSQL(b.servers[1].DSN("postgres"), sql); err != nil {
			b.t.Error(err)
		}
	}
	time.Sleep(8 * time.Second)
	b.kill(0)
	time.Sleep(8 * time.Second)
}

// atKill reports whether an answer ended when its proxy was killed: the proxy may have passed on more than
// the client got.
func (b *tokenBed) atKill(a *answer) bool {
	for _, at := range b.killed[a.proxy] {
		if a.done.IsZero() || a.done.After(at.Add(-2*time.Second)) && a.done.Before(at.Add(time.Second)) {
			return true
		}
	}
	return false
}

// mayBeLost reports whether the settlement of an answer may have died with its proxy, which keeps it until
// the database answers. In an outage, and on a busy machine, that takes long.
func (b *tokenBed) mayBeLost(a *answer) bool {
	kills := b.killed[a.proxy]
	return a.done.Before(kills[len(kills)-1].Add(time.Second))
}

// The counter of a budget is the sum of the ledger, and the ledger has what each answer cost, to the token,
// once: through kills of the proxies, an outage and a failover. Apart from that are answers of killed
// proxies, which may be in the ledger or not, and of streams that their clients left, which cost what was
// sent. The budget is exceeded by at most one answer, by what running answers cost more than they hold, and
// by requests without a decision. Clients wait for the end of the window only once the budget is used, and in
// the end nothing is held.
func TestSoakOfTokens(t *testing.T) {
	m := &tokenModel{random: rand.New(rand.NewPCG(seed.Of(t), 1)), answers: map[string]*answer{}}
	upstream := httptest.NewServer(m)
	t.Cleanup(upstream.Close)
	b := startTokenBed(t, upstream.URL)
	client, closeIdle := harness.NewClient(tokenClients)
	t.Cleanup(closeIdle)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range tokenClients {
		url := b.proxies[i%2].url
		clients.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(m.ask(t.Context(), client, i%2, url))
			}
		})
	}
	b.faults()
	stop()
	clients.Wait()
	dsn := b.servers[1].DSN("postgres")
	const held = "SELECT coalesce(sum(held), 0)::bigint FROM rate_limit_counters('budget', true)"
	await(t, "nothing to be held", func() bool { return cluster.Query[int64](t, dsn, held) == 0 })
	b.check(m, dsn)
}

// settled is the row of an answer in the ledger.
type settled struct{ units, micros int64 }

// readLedger returns the rows of answers in the ledger, and their sum.
func (b *tokenBed) readLedger(dsn string) (rows map[string]settled, sum int64) {
	rows, b.nobody = map[string]settled{}, nil
	for _, row := range cluster.Texts(b.t, dsn, `SELECT concat_ws(' ', coalesce(user_id, 'nobody'), units,
		(extract(epoch FROM time) * 1e6)::bigint) FROM rate_limit_ledger,
		jsonb_to_recordset(charges) AS c(units bigint)`) {
		name, s := "", settled{}
		if _, err := fmt.Sscan(row, &name, &s.units, &s.micros); err != nil {
			b.t.Fatalf("%s: %v", row, err)
		}
		sum += s.units
		if name == "nobody" { // the policy could not look up its user
			b.nobody = append(b.nobody, s.units)
			continue
		}
		if _, twice := rows[name]; twice {
			b.t.Errorf("%s is twice in the ledger", name)
		}
		rows[name] = s
	}
	return rows, sum
}

// checkOverrun fails the test if more is used than docs/llm.md promises: beyond the budget by at most one
// answer, and by what running answers cost more than they hold. Running are those that were settled after the
// client asked that passed last. Requests without a decision come on top.
func (b *tokenBed) checkOverrun(m *tokenModel, rows map[string]settled, sum int64) {
	last, undecided, beyond := time.Time{}, int64(0), int64(0)
	for _, units := range b.nobody {
		undecided += units
	}
	for name, a := range m.answers {
		row, charged := rows[name]
		switch {
		case charged && !a.decided:
			undecided += row.units
		case charged && a.asked.After(last):
			last = a.asked
		}
	}
	for name, row := range rows {
		if a := m.answers[name]; a.decided && row.micros > last.UnixMicro() {
			beyond += max(0, row.units-reservedTokens)
		}
	}
	text := fmt.Sprintf("%d tokens used of %d, by one answer at most %d, by running answers at most %d, "+
		"without a decision %d", sum, tokenBudget, mostTokens, beyond, undecided)
	b.t.Log(text)
	if sum > tokenBudget+mostTokens+beyond+undecided {
		b.t.Error(text)
	}
}

// check compares the counter, the ledger and the answers.
func (b *tokenBed) check(m *tokenModel, dsn string) {
	rows, sum := b.readLedger(dsn)
	// What passed without a decision holds nothing, and is settled once the proxy has its tables again.
	for until := time.Now().Add(awaitTimeout); b.unsettled(m, rows) > 0 && time.Now().Before(until); {
		time.Sleep(time.Second)
		rows, sum = b.readLedger(dsn)
	}
	counted := cluster.Query[int64](b.t, dsn, `SELECT sum(count)::bigint FROM rate_limit_durable
		WHERE prefix = 'budget'`)
	if counted != sum {
		b.t.Errorf("the counter has %d tokens, and the ledger %d", counted, sum)
	}
	kinds := map[string]int{}
	var told *answer // the first refusal with a Retry-After of more than a second
	for name, a := range m.answers {
		row, charged := rows[name]
		want := a.tokens
		if a.kind == "broken" {
			want = a.tokens/2 + 10
		}
		kinds[b.compare(name, a, row.units, want, charged)]++
		if a.wait > 2*time.Second && (told == nil || a.done.Before(told.done)) {
			told = a
		}
	}
	if told != nil {
		if before := b.usedBefore(dsn, told.done); before < tokenBudget {
			b.t.Errorf("a client was told to wait %v when %d tokens were used", told.wait, before)
		}
	}
	b.checkOverrun(m, rows, sum)
	b.t.Log("answers: ", kinds)
}

// unsettled returns how many answers of proxies that were not killed since lack a row.
func (b *tokenBed) unsettled(m *tokenModel, rows map[string]settled) (n int) {
	for name, a := range m.answers {
		if _, charged := rows[name]; !charged && a.status == http.StatusOK && !b.mayBeLost(a) {
			n++
		}
	}
	return max(0, n-len(b.nobody))
}

// usedBefore returns the tokens that the ledger had at a time.
func (b *tokenBed) usedBefore(dsn string, at time.Time) int64 {
	return cluster.Query[int64](b.t, dsn, fmt.Sprintf(`SELECT coalesce(sum((c->>'units')::bigint), 0)::bigint
		FROM rate_limit_ledger, jsonb_array_elements(charges) c WHERE time <= to_timestamp(%d / 1e6)`,
		at.UnixMicro()))
}

// compare compares the row of an answer in the ledger with what it cost, and returns its kind.
func (b *tokenBed) compare(name string, a *answer, units, want int64, charged bool) string {
	switch {
	case a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable:
		if charged {
			b.t.Errorf("%s was refused with %d, and is charged %d", name, a.status, units)
		}
		return "refused"
	case b.atKill(a):
		if charged && units > max(want, a.sent+10, reservedTokens) {
			b.t.Errorf("%s, of a killed proxy, is charged %d, want at most %d", name, units, want)
		}
		return "of killed proxies"
	case a.kind == "cut" && a.status == 0:
		if units > a.sent+10 && units != reservedTokens {
			b.t.Errorf("%s, which its client left, is charged %d of %d that were sent", name, units, a.sent)
		}
		return "left"
	case a.status == http.StatusOK && !charged && b.mayBeLost(a):
		return "lost with killed proxies"
	case a.status == http.StatusOK && !charged && !a.decided && len(b.nobody) > b.unnamed:
		b.unnamed++
		return "without a user"
	case a.status == http.StatusOK && (!charged || units != want):
		b.t.Errorf("%s (%s, proxy %d) is charged %d (%v), want %d", name, a.kind, a.proxy, units, charged,
			want)
	}
	return fmt.Sprint(a.kind, " ", a.status)
}
