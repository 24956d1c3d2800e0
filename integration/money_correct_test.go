package integration

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Requests that wrong prices were charged for are billed again, while others run: at the end, each costs what
// its model says, to the billionth, in the ledger, on the invoices and in the counters of four levels. The
// command is killed after some of its transactions, again and again, and its server fails. A counter that was
// reset has nothing of what was charged before. At first, the Caddy is of the first numbered version.
func TestCorrectionsReachCountersOnceThroughKillsAndFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	b := startBudgetBed(t, harness.Caddy(t, baselineTree(t)))
	b.requests = 0
	cluster.Execute(t, b.dsn, `UPDATE rate_limit_overrides SET events = 9e15;
		UPDATE rate_limit_prices SET input = input * 1.5, output = output * 1.7 WHERE model <> 'large*';
		UPDATE rate_limit_prices SET input = 0, cache_read = 0, cache_write = 0, output = 0
			WHERE model = 'large*'`)
	awaitPolicyApplied(t, b.dsn, 2)
	b.load(3000)
	b.quiesce()
	caddy := buildCaddy(t)
	reset := map[string]map[string]bool{}
	for _, user := range []string{"p3", "o0"} {
		run(t, ".", caddy, "pg-ratelimit", "--dsn", b.dsn, "reset", "rule/budget/month", user)
		reset[user] = map[string]bool{}
		for name := range b.questions {
			reset[user][name] = true
		}
	}
	var clients sync.WaitGroup
	clients.Go(func() { b.load(1000) })
	cluster.Execute(t, b.dsn, rightPrices())
	b.killCorrections(caddy)
	clients.Wait()
	b.must(b.proxies[0].Stop())
	b.proxies[0].program = caddy
	b.proxies[0].start()
	var said atomic.Bool
	clients.Go(func() {
		for !said.Load() {
			b.load(1000)
		}
	})
	await(t, "the command to say that requests run", func() bool {
		out := run(t, ".", caddy, "pg-ratelimit", "--dsn", b.dsn, "prices", "correct", "*", "--from", "1h")
		return regexp.MustCompile(`(?m)^running +[1-9]`).MatchString(out)
	})
	b.must(b.servers[0].Kill())
	b.must(runSQL(b.servers[1].DSN("postgres"), "SELECT pg_promote()",
		"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"))
	said.Store(true)
	for !strings.Contains(b.correctAll(caddy), "running          0") {
		if t.Failed() || t.Context().Err() != nil {
			return
		}
	}
	clients.Wait()
	b.quiesce()
	b.correctAll(caddy)
	if text := b.correctAll(caddy); !strings.Contains(text, "corrected        0\n") {
		t.Errorf("a further run: %s", text)
	}
	b.checkCorrected(reset)
}

// killCorrections kills the command three times, each time after some of its transactions, unless it is done.
func (b *budgetBed) killCorrections(caddy string) {
	b.t.Helper()
	for kill := range 3 {
		before := b.corrected()
		command := b.correct(caddy)
		b.must(command.Start())
		await(b.t, "the command to correct some", func() bool { return b.corrected() > before })
		b.must(command.Process.Kill())
		killed := command.Wait()
		b.t.Logf("kill %d: %v, %d are corrected", kill, killed, b.corrected())
		if killed == nil {
			return
		}
	}
}

// rightPrices returns SQL that makes prices those of the models.
func rightPrices() (sql string) {
	for _, m := range pricedModels {
		sql += fmt.Sprintf(`UPDATE rate_limit_prices SET (input, cache_read, cache_write, output) =
			(%d / 10000.0, %d / 10000.0, %d / 10000.0, %d / 10000.0) WHERE model = '%s*';`,
			m.rates[0], m.rates[1], m.rates[2], m.rates[3], m.name)
	}
	return sql
}

// load asks more questions.
func (b *budgetBed) load(n int64) {
	b.mu.Lock()
	b.requests += n
	b.mu.Unlock()
	began := time.Now()
	var clients sync.WaitGroup
	for i := range 24 {
		clients.Go(func() {
			for b.ask(i % 2) {
			}
		})
	}
	clients.Wait()
	b.t.Logf("%d requests, %.0f a second", n, float64(n)/time.Since(began).Seconds())
}

// quiesce waits until all answers that cost something are charged.
func (b *budgetBed) quiesce() {
	b.t.Helper()
	want := int64(0)
	b.mu.Lock()
	for _, q := range b.questions {
		if q.arrivals > 0 && q.kind != "fails" {
			want++
		}
	}
	b.mu.Unlock()
	await(b.t, "all answers to be charged", func() bool {
		return want == cluster.Query[int64](b.t, b.dsn,
			"SELECT count(*) FROM rate_limit_ledger WHERE kind = 'charge'")
	})
}

// corrected returns the number of corrections.
func (b *budgetBed) corrected() int64 {
	return cluster.Query[int64](b.t, b.dsn,
		"SELECT count(*) FROM rate_limit_ledger WHERE kind = 'correction'")
}

// correct returns the command that corrects all requests.
func (b *budgetBed) correct(caddy string) *exec.Cmd {
	return exec.CommandContext(b.t.Context(), caddy, "pg-ratelimit", "--dsn", b.dsn, "prices", "correct", "*",
		"--from", "1h", "--reason", "typing error", "--yes")
}

// correctAll corrects all requests, and returns what the command says.
func (b *budgetBed) correctAll(caddy string) (text string) {
	await(b.t, "the command to correct all", func() bool {
		out, err := b.correct(caddy).CombinedOutput()
		if text = string(out); err != nil {
			b.t.Log(text)
		}
		return err == nil
	})
	return text
}

// checkCorrected compares the ledger, the invoices and the counters with the accounts of the models. reset
// has the questions that are not in the counters of users.
func (b *budgetBed) checkCorrected(reset map[string]map[string]bool) {
	b.t.Helper()
	bills, counts, sums := map[string]string{}, map[string]int64{}, map[string]int64{}
	for name, q := range b.questions {
		if q.arrivals == 0 || q.kind == "fails" {
			continue
		}
		bills[name] = fmt.Sprint(q.cost)
		for _, user := range chain(q.person, false) {
			sums[user] += q.cost
			if !reset[user][name] {
				counts[user] += q.cost
			}
		}
	}
	check.Equal(b.t, "the ledger", b.values(`model, (sum(money) * 1e9)::bigint) FROM rate_limit_ledger_rows()
		GROUP BY model`), bills)
	counters, invoices := map[string]string{}, map[string]string{}
	for user := range sums {
		counters[user] = fmt.Sprint(counts[user])
		invoices[user] = fmt.Sprint(sums[user])
	}
	check.Equal(b.t, "the counters", b.values("key, (used * 1e9)::bigint) FROM rate_limit_used"), counters)
	check.Equal(b.t, "the invoices", b.values(`user_id, (SELECT (sum(i.money) * 1e9)::bigint
		FROM rate_limit_invoice(user_id) i)) FROM rate_limit_users`), invoices)
}
