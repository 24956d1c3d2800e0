package reports

import (
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// heldBack is how long F35 holds back vacuum. The times before and after it last at most a minute.
var heldBack = flag.Duration("held-back", 2*time.Second, "how long F35 holds back vacuum")

// manyDays is SQL that makes 210,000 rows of a user below three others, of 28 days, and sums the days.
//
//go:embed testdata/many_days.sql
var manyDays string

const sumDays = `DO $$ BEGIN WHILE EXISTS (SELECT FROM rate_limit_ledger_parts() p
	WHERE NOT p.summed AND p.day < (now() AT TIME ZONE 'UTC')::date - 1) LOOP
	PERFORM rate_limit_totals_upkeep(); COMMIT; END LOOP; END $$`

// invoicesManyRows checks that an invoice takes less time than a sum of its rows, and delays no decision.
func invoicesManyRows(v *visit) {
	own := v.in(v.id)
	cluster.Execute(v, own.dsn, manyDays)
	cluster.Execute(v, own.dsn, sumDays)
	result := make(chan *harness.Result, 1)
	go func() {
		result <- harness.Run(v.Context(), harness.Load{Clients: 16, Requests: 1500,
			Every: 2 * time.Millisecond, Request: v.inTurn("", nil)})
	}()
	days := cluster.Query[string](v, own.dsn,
		"SELECT concat_ws(' ', min(day), max(day) + 1) FROM rate_limit_ledger")
	from, until := days[:10], days[11:]
	fastest := [2]time.Duration{time.Hour, time.Hour}
	var sums [2]string
	for range 5 { // in turn, so that the machine is as busy for both
		for i, sql := range []string{
			`SELECT concat_ws(' ', count(*), sum(money) * 0.000001) FROM rate_limit_ledger`,
			`SELECT concat_ws(' ', sum(requests), sum(money)::numeric(9, 6))
				FROM rate_limit_invoice('orbit', '` + from + `', '` + until + `')`,
		} {
			began := time.Now()
			sums[i] = cluster.Query[string](v, own.dsn, sql)
			fastest[i] = min(fastest[i], time.Since(began))
		}
	}
	out := own.command("invoice", "orbit", "--from", from, "--until", until)
	if sums != [2]string{"210000 2.310000", "210000 2.310000"} || !strings.Contains(out, "2.31") {
		v.Errorf("the rows and the invoice are %q, printed as %s, want 2.31", sums, out)
	}
	check.Equal(v, "the statuses beside the invoices", <-result, "200×1500")
	if fastest[1] > fastest[0] {
		v.Errorf("the invoice takes %v, want less than the %v of a sum of the rows", fastest[1], fastest[0])
	}
}

// perWindow and window are the limit of F35, which is almost the load.
const (
	perWindow = 20000
	window    = 4 * time.Second
)

// besideAnOldTransaction checks that a busy key stays within its limit while a transaction holds back vacuum.
// Each proxy gets 3,000 requests a second.
func besideAnOldTransaction(v *visit) {
	own := v.in("f35-a-caddy")
	number := func(sql string) int { return cluster.Query[int](v, own.dsn, "SELECT ("+sql+")::int") }
	const size, assigned = "pg_total_relation_size('rate_limit_ephemeral') / 1024",
		"SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	measure := func(what string, d time.Duration) {
		from, xid, began := number(size), number(assigned), time.Now()
		ctx, cancel := context.WithTimeout(v.Context(), d)
		defer cancel()
		r := harness.Run(ctx, harness.Load{Clients: 256, Every: time.Second / 6000,
			Request: v.inTurn("f35-a-caddy", nil)})
		lasted, passed := time.Since(began), r.Status[http.StatusOK]
		if most := perWindow * (int(lasted/window) + 2); passed > most {
			v.Errorf("%s: %d requests passed in %v, want at most %d", what, passed, lasted, most)
		}
		slices.SortFunc(r.Replies, func(a, b harness.Reply) int { return cmp.Compare(a.Took, b.Took) })
		n := len(r.Replies)
		v.Logf("%s: %v in %v; p50 %v, p99 %v, p99.9 %v; the table: %d to %d KB; %d transactions", what, r,
			lasted, r.Replies[n/2].Took, r.Replies[n*99/100].Took, r.Replies[n*999/1000].Took, from,
			number(size), number(assigned)-xid)
	}
	measure("without", min(*heldBack, time.Minute))
	held := cluster.Connect(v, own.dsn)
	if _, err := held.Exec(v.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"); err != nil {
		v.Fatal(err)
	}
	measure("held back", *heldBack)
	check.OK(v, held.Close(v.Context()))
	measure("after it", min(*heldBack, time.Minute))
}

// busy is a site of F35 in the schema of its first one.
func busy(only string, check func(*visit)) site {
	return site{only: only, check: check, schema: "SELECT 1;", handler: "dsn DSN&search_path=f35-a-caddy",
		zones: []string{fmt.Sprintf("prefix f35\nkey all\nalgorithm fixed_window\nlimit %d %s", perWindow,
			window)}}
}

var held = []report{
	{"F34", "BerriAI/litellm#16276, #2235", []site{{only: "caddy", schema: "SELECT 1;",
		handler: "dsn DSN&search_path=FAKE", zones: []string{"limit 100000 1h"}, check: invoicesManyRows}}},
	{"F35", "NikolayS/PgQue, xmin horizon", []site{busy("caddy", nil),
		busy("traefik", besideAnOldTransaction)}},
}
