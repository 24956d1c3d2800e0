package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
)

// make test-budgets sends a million.
var budgetRequests = flag.Int("budget-requests", 20_000, "the requests of TestBudgetsInMoneyAreExact")

// budgetTiers has the budget of each tier in millionths, for each request of the load. A tier has the first
// letter of its users. Who pays has three times the budget.
var budgetTiers = map[string]int64{"o": 200, "d": 105, "t": 55, "p": 36, "plus": 108}

// chain returns a person and the users above: two people are a team, two teams a department, and two of these
// an organization. The team t1 moves to another organization.
func chain(person int, moved bool) []string {
	department := person / 4
	if moved && person/2 == 1 {
		department = 3
	}
	return []string{fmt.Sprint("p", person), fmt.Sprint("t", person/2), fmt.Sprint("d", department),
		fmt.Sprint("o", department/2)}
}

// budgetBed has a Caddy and a Traefik in front of models, on a primary with a synchronous standby.
type budgetBed struct {
	t             *testing.T
	requests      int64
	servers       [2]*cluster.Cluster
	dsn           string // of the primary, whichever it is
	proxies       []*controlledProxy
	client        *http.Client
	kills         [2][]time.Time // of each proxy
	settledWithin time.Duration  // how long after a response its settlement may still be lost
	moving, moved time.Time      // before the move of a team, and when both proxies have applied it

	mu        sync.Mutex // guards the fields below
	random    *rand.Rand
	questions map[string]*question
	answered  int64
}

// Budgets in money are exact on four levels, through kills of proxies, an outage and a failover, while
// people and teams are upgraded with their payments, and a team moves. The counters are the invoices and
// what the models say that their answers cost, to the billionth. Each threshold that was crossed has one
// notice, within 10 s. A budget is exceeded by at most one answer, and by what running answers cost more
// than they hold. The answers of killed proxies are charged or not.
func TestBudgetsInMoneyAreExact(t *testing.T) {
	b := startBudgetBed(t, buildCaddy(t))
	var clients sync.WaitGroup
	for i := range min(100, b.requests/50) {
		clients.Go(func() {
			for b.ask(int(i % 2)) {
			}
		})
	}
	const steps = 24
	for step := range int64(steps) {
		awaitWithin(t, time.Hour, "the next step", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.answered >= b.requests*step/steps
		})
		switch step {
		case 4, 20:
			b.kill(0)
		case 8:
			b.moving = time.Now()
			cluster.Execute(t, b.dsn, "SELECT rate_limit_user('t1', parent => 'd3')")
			awaitPolicyApplied(t, b.dsn, len(b.proxies))
			b.moved = time.Now()
		case 12:
			b.kill(1)
		case 14: // requests without a decision are refused, and settlements wait
			b.must(b.servers[0].Pause())
			time.Sleep(3 * time.Second)
			b.must(b.servers[0].Resume())
		case 16:
			b.must(b.servers[0].Kill())
			b.must(runSQL(b.servers[1].DSN("postgres"), "SELECT pg_promote()",
				"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"))
		}
		b.upgrade(step)
	}
	clients.Wait()
	await(t, "nothing to be held", func() bool {
		return cluster.Query[int64](t, b.dsn, "SELECT count(*) FROM rate_limit_used WHERE held > 0") == 0
	})
	b.check()
}

// startBudgetBed starts the servers and the proxies. caddy is the program of the Caddy.
func startBudgetBed(t *testing.T, caddy string) *budgetBed {
	t.Helper()
	b := &budgetBed{t: t, requests: int64(*budgetRequests), random: seed.New(t),
		questions: map[string]*question{},
		servers:   [2]*cluster.Cluster{cluster.Private(t, replicating), cluster.Private(t, replicating)}}
	if testing.Short() {
		b.requests = min(b.requests, 2000)
	}
	sql := schema.File + `CREATE TABLE payments (user_id text, budget numeric);
		SELECT rate_limit_tier(t) FROM unnest('{o,d,t,p,plus}'::text[]) t;
		SELECT rate_limit_rule('budget', tiers => '{o,d,t,p,plus}', notify => '{50,80,100}',
			limits => '{month=0 money/1mo calendar}');`
	for tier := range budgetTiers {
		sql += fmt.Sprintf("SELECT rate_limit_override('budget', 'month', '%f', tier => '%s');",
			b.budget(tier), tier)
	}
	for _, m := range pricedModels {
		sql += fmt.Sprintf("SELECT rate_limit_price('%s*', max_output => %d, above => %d%s%s);", m.name,
			largestOutput, m.from, prices("", m.rates), prices("above_", m.above))
	}
	for person := range 16 {
		parent := ""
		for _, user := range slices.Backward(chain(person, false)) {
			sql += fmt.Sprintf("SELECT rate_limit_user('%s', tier => '%.1[1]s', period_start => "+
				"current_date - 14%s);", user, parent) // far from the end of a month
			parent = ", parent => '" + user + "'"
		}
	}
	first := b.servers[0].DSN("postgres")
	cluster.Execute(t, first, sql)
	b.must(b.servers[1].Follow(t.Context(), b.servers[0]))
	b.must(runSQL(first, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"))
	b.dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&"+
		"target_session_attrs=read-write", b.servers[0].Port(), b.servers[1].Port())
	routes := []route{{path: "/", backend: harness.Serve(t, b.ServeHTTP), limit: object{"timeout": "1s",
		"onError": "deny", "policy": object{"user": "{header.X-User}"}}}}
	b.proxies = []*controlledProxy{startControlledCaddy(t, caddy, "caddy", b.dsn, routes),
		startControlledTraefik(t, "traefik", b.dsn, routes)}
	client, closeIdle := harness.NewClient(100)
	t.Cleanup(closeIdle)
	b.client = client
	awaitPolicyApplied(t, b.dsn, 2)
	return b
}

// must ends the test unless a fault has succeeded.
func (b *budgetBed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// prices returns arguments of rate_limit_price.
func prices(prefix string, rates tokens) (list string) {
	for kind, name := range []string{"input", "cache_read", "cache_write", "output"} {
		list += fmt.Sprintf(", %s%s => %d / 10000.0", prefix, name, rates[kind])
	}
	return list
}

// budget returns the budget of a tier.
func (b *budgetBed) budget(tier string) float64 { return float64(budgetTiers[tier]*b.requests) / 1e6 }

// upgrade gives a person another tier, or a team an override, in the transaction of a payment. It rolls back
// every other pair of them, and logs a transaction that fails, as in a failover.
func (b *budgetBed) upgrade(step int64) {
	user, paid := fmt.Sprint("p", step/2), b.budget("plus")
	change := fmt.Sprintf("rate_limit_user('%s', tier => 'plus')", user)
	if step%2 == 1 {
		user, paid = fmt.Sprint("t", step/4), 3*b.budget("t")
		change = fmt.Sprintf("rate_limit_override('budget', 'month', '%f', user_id => '%s')", paid, user)
	}
	end := []string{"COMMIT", "ROLLBACK"}[step/2%2]
	if err := runSQL(b.dsn, fmt.Sprintf("BEGIN; INSERT INTO payments VALUES ('%s', %f); SELECT %s; %s", user,
		paid, change, end)); err != nil {
		b.t.Log(err)
	}
}

// kill kills a proxy with SIGKILL, and starts it again.
func (b *budgetBed) kill(proxy int) {
	b.t.Helper()
	b.kills[proxy] = append(b.kills[proxy], time.Now())
	b.must(b.proxies[proxy].Kill())
	b.proxies[proxy].start()
}

// ask asks a question, and reports whether its client asks another one.
func (b *budgetBed) ask(proxy int) bool {
	b.mu.Lock()
	if b.answered >= b.requests {
		b.mu.Unlock()
		return false
	}
	q := b.next(proxy)
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.proxies[proxy].url,
		strings.NewReader(q.body))
	if err != nil {
		panic(err)
	}
	q.body = "" // a million of them are long
	request.Header.Set("X-User", fmt.Sprint("p", q.person))
	q.sent = time.Now()
	pause := time.Duration(0)
	if response, err := b.client.Do(request); err == nil {
		q.began, q.status = time.Now(), response.StatusCode
		q.read(response.Body)
		cancel() // before the end of the body, so that a client that leaves closes its connection
		_ = response.Body.Close()
		wait, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		q.told = q.status == http.StatusTooManyRequests && wait > 2
	}
	q.done = time.Now()
	switch q.status {
	case http.StatusTooManyRequests:
		pause = 50 * time.Millisecond
		fallthrough
	case http.StatusOK, http.StatusInternalServerError:
		b.mu.Lock()
		b.answered++
		b.mu.Unlock()
	default: // a proxy or the database does not run
		pause = 100 * time.Millisecond
	}
	time.Sleep(pause)
	return b.t.Context().Err() == nil
}
