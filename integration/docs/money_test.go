package docs

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// moneyRecipe is a section of moneyChapter, and what proves it.
type moneyRecipe struct {
	section string
	prove   func(b *moneyBed)
}

// moneyRecipes are in the order of the page.
var moneyRecipes = []moneyRecipe{
	{"Prices", (*moneyBed).proveNothing},
	{"A plan in money", (*moneyBed).provePlan},
	{"Organization, team, person", (*moneyBed).proveLevels},
	{"A soft limit", (*moneyBed).proveSoftLimit},
	{"A customer's own usage", (*moneyBed).proveOwnUsage},
	{"An upgrade in the payment's transaction", (*moneyBed).proveUpgrade},
	{"The invoice of a month", (*moneyBed).proveInvoice},
	{"Notices", (*moneyBed).proveNotices},
}

// The recipes of docs/llm.md for budgets in money hold as they stand, in a Caddy and a Traefik with the
// configurations of the page. The test changes only addresses, the name of a role, some amounts, and when
// periods begin.
func TestRecipesOfMoneyHoldInBothProxies(t *testing.T) {
	b := newMoneyBed(t)
	for section := range b.sql {
		if !slices.ContainsFunc(moneyRecipes, func(r moneyRecipe) bool { return r.section == section }) {
			t.Errorf("no test proves the section %q", section)
		}
	}
	for _, r := range moneyRecipes {
		t.Run(r.section, func(t *testing.T) {
			b.T = t
			if len(b.sql[r.section]) == 0 {
				t.Fatal("the section has no SQL")
			}
			r.prove(b)
		})
	}
}

// proveNothing only runs the SQL.
func (b *moneyBed) proveNothing() { b.run("Prices") }

// provePlan checks that ann is refused by each limit of the plan, and that a model without a price is.
func (b *moneyBed) provePlan() {
	b.run("A plan in money")
	b.addKey("ann")
	for proxy := range b.proxies {
		check.Equal(b.T, "the status of ann's request", b.ask(proxy, "ann", 0).Status, http.StatusOK)
		r := b.askModel(proxy, "ann", "/v1/chat/completions", "without-a-price")
		check.Equal(b.T, "the status of a model without a price", r.Status, http.StatusBadRequest)
		const want = `{"message":"The model \"without-a-price\" has no price",`
		if !strings.Contains(r.Body, want) {
			b.Errorf("the body is %s, want the model", r.Body)
		}
	}
	b.checkUsed("budget/month", "ann")
	for _, l := range []struct{ limit, amount string }{{"month", "0.000023"}, {"tpm", "70"}} {
		b.execute("SELECT rate_limit_override('budget', '" + l.limit + "', '" + l.amount +
			"', user_id => 'ann')")
		for proxy := range b.proxies {
			b.awaitRefused(proxy, "ann", "budget/"+l.limit)
		}
		b.execute("SELECT rate_limit_delete_override('budget', '" + l.limit + "', user_id => 'ann')")
	}
}

// proveLevels checks that each level refuses for all below it, and that all levels are charged or none.
func (b *moneyBed) proveLevels() {
	b.run("Organization, team, person")
	b.addKey("bob")
	levels := []struct{ rule, limit, user string }{{"organization", "month", "orbit"},
		{"team", "month", "blue"}, {"person", "day", "bob"}}
	for model := range moneyModels {
		for proxy := range b.proxies {
			check.Equal(b.T, "the status of bob's request", b.ask(proxy, "bob", model).Status, http.StatusOK)
		}
	}
	for _, l := range levels {
		b.checkUsed(l.rule+"/"+l.limit, l.user)
		b.execute(fmt.Sprintf("SELECT rate_limit_override('%s', '%s', '0.000001', user_id => '%s')", l.rule,
			l.limit, l.user))
		for proxy := range b.proxies {
			b.awaitRefused(proxy, "bob", l.rule+"/"+l.limit)
		}
		b.execute(fmt.Sprintf("SELECT rate_limit_delete_override('%s', '%s', user_id => '%s')", l.rule,
			l.limit, l.user))
		for proxy := range b.proxies {
			await.Until(b.T, "bob's request to pass", func() bool {
				return b.ask(proxy, "bob", 0).Status == http.StatusOK
			})
		}
	}
	for _, l := range levels {
		b.checkUsed(l.rule+"/"+l.limit, l.user)
	}
}

// proveSoftLimit checks that the second upstream takes over at the lower amount, until the higher one.
func (b *moneyBed) proveSoftLimit() {
	b.run("A soft limit")
	for proxy, user := range []string{"carl", "carla"} { // each proxy begins with an unused budget
		b.execute("SELECT rate_limit_user('" + user +
			"', tier => 'soft', overrides => '{soft/soft=0.000012,soft/hard=0.000024}')")
		b.addKey(user)
		for _, want := range []string{"first", "second"} {
			r := b.ask(proxy, user, 0)
			check.Equal(b.T, "the upstream", r.Header.Get("X-Upstream"), want)
			overage, err := strconv.ParseFloat(r.Header.Get("X-RateLimit-Overage"), 64)
			if beyond := want == "second"; beyond != (err == nil) || overage > 0.0001 {
				b.Errorf("of the %s upstream, X-RateLimit-Overage is %q", want,
					r.Header.Get("X-RateLimit-Overage"))
			}
			b.checkUsed("soft/hard", user)
		}
		b.awaitRefused(proxy, user, "soft/hard")
	}
}

// proveOwnUsage checks that the role of the page sees a customer's own limits and costs, and nothing else.
func (b *moneyBed) proveOwnUsage() {
	b.run("A customer's own usage")
	as := func(query string) []string {
		return cluster.Texts(b.T, b.dsn+"&options=-c%20role%3D"+b.role, query)
	}
	check.Equal(b.T, "bob's limits", strings.Join(as("SELECT concat_ws(' ', rule, limit_name, unit, quota) "+
		"FROM own_budget('bob') WHERE used > 0 ORDER BY 1"), ", "),
		"person day money 5.000000, person tpm tokens 100000")
	check.Equal(b.T, "bob's costs", strings.Join(as("SELECT sum(money)::text FROM own_costs('bob')"), ", "),
		b.costOf("bob"))
	for _, table := range []string{"rate_limit_users", "rate_limit_ledger", "rate_limit_used"} {
		check.Equal(b.T, "the role's right to read "+table, cluster.Query[bool](b.T, b.dsn,
			"SELECT has_table_privilege($1, $2, 'SELECT')", b.role, table), false)
	}
}

// proveUpgrade checks that a ROLLBACK leaves nothing of the payment and the upgrade, and that both hold at
// both proxies within 1.2 s after COMMIT.
func (b *moneyBed) proveUpgrade() {
	const section = "An upgrade in the payment's transaction"
	b.execute("CREATE TABLE payments (amount int, " +
		"user_id text REFERENCES rate_limit_users ON UPDATE CASCADE)")
	payment := b.sql[section][0]
	b.execute("SELECT rate_limit_limit('budget', 'month', '0.000001 money/1mo calendar')")
	for proxy := range b.proxies {
		b.awaitRefused(proxy, "ann", "budget/month")
	}
	const left = `SELECT concat_ws(' ', (SELECT count(*) FROM payments), (SELECT tier FROM rate_limit_users
		WHERE user_id = 'ann'), (SELECT max(seq) FROM rate_limit_changes))`
	before := cluster.Query[string](b.T, b.dsn, left)
	b.execute(strings.Replace(payment, "COMMIT;", "ROLLBACK;", 1))
	check.Equal(b.T, "what a ROLLBACK leaves", cluster.Query[string](b.T, b.dsn, left), before)
	for proxy := range b.proxies {
		b.awaitRefused(proxy, "ann", "budget/month")
	}
	late := await.Lateness()
	cluster.Execute(b.T, b.dsn, payment)
	start := time.Now()
	for proxy := range b.proxies {
		await.Until(b.T, "the upgrade", func() bool { return b.ask(proxy, "ann", 0).Status == http.StatusOK })
	}
	if took := time.Since(start) - late(); took > 1200*time.Millisecond {
		b.Errorf("the upgrade holds at both proxies after %v, want 1.2 s", took)
	}
	check.Equal(b.T, "the payments", cluster.Query[string](b.T, b.dsn,
		"SELECT string_agg(user_id || ' ' || amount, ', ') FROM payments"), "ann 99")
	b.execute("SELECT rate_limit_limit('budget', 'month', '50 money/1mo calendar')")
}

// proveInvoice checks that the invoice of the organization has what bob has used, to the billionth, and that
// ann's counter of the month is ann's invoice.
func (b *moneyBed) proveInvoice() {
	blocks := b.sql["The invoice of a month"]
	b.checkUsed("organization/month", "orbit")
	var want []string
	total := [5]int64{}
	for model, n := range b.passed["bob"] {
		m := moneyModels[model]
		kinds := [4]int64{}
		for i, kind := range m.tokens {
			kinds[i] = int64(n) * kind
			total[i] += kinds[i]
		}
		total[4] += int64(n) * m.cost
		want = append(want, fmt.Sprint(m.name, " ", n, " ", kinds[0], " ", kinds[1], " ", kinds[2], " ",
			kinds[3], " ", amountOf(int64(n)*m.cost)))
	}
	slices.Sort(want)
	invoice := strings.TrimSuffix(strings.TrimSpace(blocks[0]), ";")
	got := cluster.Texts(b.T, b.dsn, `SELECT concat_ws(' ', model, requests, input, cache_read, cache_write,
		output, money) FROM (`+invoice+") i ORDER BY 1")
	slices.Sort(got)
	check.Equal(b.T, "the invoice of orbit", strings.Join(got, "\n"), strings.Join(want, "\n"))
	check.Equal(b.T, "the total of orbit", amountOf(total[4]), b.costOf("bob"))
	before := strings.ReplaceAll(blocks[1], "now()", "(SELECT min(time) FROM rate_limit_ledger)")
	check.Equal(b.T, "the rows of the previous month", len(cluster.Texts(b.T, b.dsn,
		"SELECT model FROM ("+strings.TrimSuffix(strings.TrimSpace(before), ";")+") i")), 0)
	b.checkUsed("budget/month", "ann")
	check.Equal(b.T, "ann's invoice", cluster.Query[string](b.T, b.dsn,
		"SELECT sum(money)::text FROM rate_limit_invoice('ann')"), b.costOf("ann"))
}

// proveNotices checks that each percentage makes one row and one notification, which the job takes once.
func (b *moneyBed) proveNotices() {
	b.run("Notices")
	b.execute("SELECT rate_limit_user('dora', tier => 'starter', overrides => '{budget/month=0.00003}')")
	b.addKey("dora")
	listener := cluster.Connect(b.T, b.dsn)
	if _, err := listener.Exec(b.Context(), "LISTEN rate_limit_notices"); err != nil {
		b.Fatal(err)
	}
	job := func() string {
		return strings.Join(cluster.Texts(b.T, b.dsn, `UPDATE rate_limit_notices SET taken_at = now()
			WHERE taken_at IS NULL AND void_at = 'infinity'
			RETURNING concat_ws(' ', rule, limit_name, key, percent, used, quota)`), ", ")
	}
	for request, want := range []string{"", "budget month dora 80 0.000024 0.000030",
		"budget month dora 100 0.000035 0.000030"} {
		check.Equal(b.T, "the status of dora's request", b.ask(request%2, "dora", 0).Status, http.StatusOK)
		b.checkUsed("budget/month", "dora")
		if want == "" {
			continue
		}
		if _, err := listener.WaitForNotification(b.Context()); err != nil {
			b.Fatal(err)
		}
		check.Equal(b.T, "what the job takes", job(), want)
	}
	check.Equal(b.T, "the notices of dora", cluster.Query[string](b.T, b.dsn, `SELECT
		string_agg(percent::text, ' ' ORDER BY percent) FROM rate_limit_notices
		WHERE key = 'dora'`), "80 100")
}
