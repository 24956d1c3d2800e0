package reports

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// heldBack is how long F35 holds back vacuum, and how long its control lasts.
var heldBack = flag.Duration("held-back", 2*time.Second, "how long F35 holds back vacuum")

// lastMonth is SQL that makes 210,000 rows of a user below three others, of the days of last month, and sums
// the days.
const lastMonth = `INSERT INTO rate_limit_users (user_id, tier, parent) VALUES ('orbit', 'free', NULL),
		('dept', 'free', 'orbit'), ('team', 'free', 'dept'), ('eve', 'free', 'team');
	DO $$ DECLARE d date; BEGIN FOR d IN SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date - i
		FROM generate_series(1, 28) i LOOP
	EXECUTE format('CREATE TABLE IF NOT EXISTS rate_limit_ledger_%s PARTITION OF rate_limit_ledger
		FOR VALUES FROM (%L) TO (%L)', to_char(d, 'YYYYMMDD'), d, d + 1);
	INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, input, output, money, charges)
	SELECT d, gen_random_uuid(), d::timestamp AT TIME ZONE 'UTC' + n * interval '1 s', 'eve',
		'{team,dept,orbit}', 'm' || n % 3, 10, 1, 11, '[{"prefix": "rule/budget/month", "key": "orbit",
		"unit": "money", "units": 11}]' FROM generate_series(1, 7500) n;
	END LOOP; END $$`

const sumLastMonth = `DO $$ BEGIN WHILE EXISTS (SELECT FROM rate_limit_ledger_parts() p
	WHERE NOT p.summed AND p.day < (now() AT TIME ZONE 'UTC')::date - 1) LOOP
	PERFORM rate_limit_totals_upkeep(); COMMIT; END LOOP; END $$`

// invoicesManyRows checks that an invoice takes less time than a sum of its rows, and delays no decision.
func invoicesManyRows(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	own := *p
	own.dsn += "&search_path=" + id
	cluster.Execute(t, own.dsn, lastMonth)
	cluster.Execute(t, own.dsn, sumLastMonth)
	fastest := func(sql string) (text string, took time.Duration) {
		took = time.Hour
		for range 5 {
			began := time.Now()
			text = cluster.Query[string](t, own.dsn, sql)
			took = min(took, time.Since(began))
		}
		return text, took
	}
	sum, long := fastest(`SELECT concat_ws(' ', count(*), sum(money) * 0.000001) FROM rate_limit_ledger`)
	result := make(chan *harness.Result, 1)
	go func() {
		result <- harness.Run(context.Background(), harness.Load{Clients: 16, Requests: 1500,
			Every: 2 * time.Millisecond, Request: func(int) *http.Request {
				return harness.Get("http://"+p.trusted+"/", "Host", hostOf(id))
			}})
	}()
	const times = `date_trunc('month', now(), 'UTC') - interval '1 month', date_trunc('month', now(), 'UTC')`
	billed, short := fastest(`SELECT concat_ws(' ', sum(requests), sum(money)::numeric(9, 6))
		FROM rate_limit_invoice('orbit', ` + times + `)`)
	from := cluster.Query[string](t, own.dsn, `SELECT concat_ws(' ', a::date, b::date)
		FROM (VALUES (`+times+`)) v(a, b)`)
	out := own.command(t, "invoice", "orbit", "--from", from[:10], "--until", from[11:])
	if sum != "210000 2.310000" || billed != sum || !strings.Contains(out, "2.31") {
		t.Errorf("%s: the invoice is %s, printed as %s, want the sum %s of the rows", id, billed, out, sum)
	}
	if out := own.command(t, "users", "get", "orbit"); !strings.Contains(out, "free") {
		t.Errorf("%s: users get prints %s, want the tier", id, out)
	}
	if got := (<-result).String(); got != "200×1500" {
		t.Errorf("%s: %s beside the invoices, want 200×1500", id, got)
	}
	if short > long {
		t.Errorf("%s: the invoice takes %v, want less than the %v of a sum of the rows", id, short, long)
	}
}

// perWindow and window are the limit of F35, which is almost the load.
const (
	perWindow = 20000
	window    = 4 * time.Second
)

// hot sends 6,000 requests a second to both proxies, and returns what passed, and the times of all.
func (p *proxy) hot(id, other string) (passed int, took []time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), *heldBack)
	defer cancel()
	results := make(chan *harness.Result, 2)
	for address, host := range map[string]string{p.trusted: id, p.other.trusted: other} {
		go func() {
			results <- harness.Run(ctx, harness.Load{Clients: 64, Every: time.Second / 3000,
				Request: func(int) *http.Request {
					return harness.Get("http://"+address+"/", "Host", hostOf(host))
				}})
		}()
	}
	for range 2 {
		r := <-results
		passed += r.Status[http.StatusOK]
		for _, reply := range r.Replies {
			took = append(took, reply.Took)
		}
	}
	slices.Sort(took)
	return passed, took
}

// besideAnOldTransaction checks that a busy key stays within its limit while a transaction holds back vacuum,
// and that the state names the transaction.
func besideAnOldTransaction(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	const other = "f35-a-caddy"
	dsn := p.dsn + "&search_path=" + other
	number := func(sql string) int { return cluster.Query[int](t, dsn, "SELECT ("+sql+")::int") }
	const size, assigned = "pg_total_relation_size('rate_limit_ephemeral') / 1024",
		"SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	measure := func(what string) {
		from, xid := number(size), number(assigned)
		began := time.Now()
		passed, took := p.hot(id, other)
		lasted := time.Since(began)
		if most := perWindow * (int(lasted/window) + 2); passed > most {
			t.Errorf("%s, %s: %d requests passed in %v, want at most %d", id, what, passed, lasted, most)
		}
		n := len(took)
		t.Logf("%s: %d requests in %v, %d passed; p50 %v, p99 %v, p99.9 %v; the table: %d to %d KB; "+
			"%d transactions", what, n, lasted, passed, took[n/2], took[n*99/100], took[n*999/1000], from,
			number(size), number(assigned)-xid)
	}
	measure("without")
	held := cluster.Connect(t, dsn)
	pid := fmt.Sprint(held.PgConn().PID())
	if _, err := held.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	measure("held back")
	cluster.Execute(t, dsn, `CREATE TABLE many (); DO $$ BEGIN FOR i IN 1..10001 LOOP BEGIN
		INSERT INTO many DEFAULT VALUES; EXCEPTION WHEN data_exception THEN NULL; END; END LOOP; END $$`)
	own := *p
	own.dsn = dsn
	if out := own.command(t, "state"); !strings.Contains(out, "the session "+pid+" of the role") ||
		!strings.Contains(out, "pg_terminate_backend("+pid+")") {
		t.Errorf("%s: state prints %s, want the session %s and what ends it", id, out, pid)
	}
	cluster.Execute(t, dsn, "SELECT pg_terminate_backend("+pid+")")
	p.Await(t, "a state without the session", func() bool {
		return number("SELECT count(*) FROM rate_limit_state WHERE state = 'vacuum'") == 0
	})
	measure("after it")
}

// busy is a site of F35 in the schema of its first one.
func busy(only string) site {
	return site{only: only, schema: "SELECT 1;", handler: "dsn DSN&search_path=f35-a-caddy",
		zones: []string{fmt.Sprintf("prefix f35\nkey all\nalgorithm fixed_window\nlimit %d %s", perWindow,
			window)}}
}

var held = []report{
	{"F34", "BerriAI/litellm#16276, #2235", []site{{only: "caddy", schema: "SELECT 1;",
		handler: "dsn DSN&search_path=FAKE", zones: []string{"limit 100000 1h"}, check: invoicesManyRows}}},
	{"F35", "NikolayS/PgQue, xmin horizon", []site{busy("caddy"), busyAndHeld()}},
}

// busyAndHeld is the site of F35 with its check.
func busyAndHeld() site {
	s := busy("traefik")
	s.check = besideAnOldTransaction
	return s
}
