package integration

import (
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// pricesSQL returns commands that set the prices of llm.Rates.
func pricesSQL(t *testing.T) string {
	t.Helper()
	sql := ""
	for model, rates := range llm.Rates(t) {
		var parts, tiers []string
		for name, rate := range rates {
			if tier, isFactor := strings.CutSuffix(name, "."); isFactor {
				tiers = append(tiers, tier+"="+rate)
			} else if name != "input" && name != "output" {
				parts = append(parts, name+"="+rate)
			}
		}
		sql += fmt.Sprintf("SELECT rate_limit_price('%s', %s, %s, parts => nullif('{%s}', '{}')::text[], "+
			"tiers => nullif('{%s}', '{}')::text[]);", model, rates["input"], rates["output"],
			strings.Join(parts, ","), strings.Join(tiers, ","))
	}
	return sql
}

// billOf returns the tokens of an answer, and its money to the billionth. An input that was not reported is
// estimated from the body of its request.
func billOf(a *llm.Answer, rates map[string]string) (tokens int64, money string) {
	if a.Charged != nil {
		return 0, "0.000000000"
	}
	sum, _ := new(big.Rat).SetString(a.Money.String())
	input := (int64(len(a.RequestBody)) + 3) / 4
	if a.Parts[option.Input] < 0 {
		rate, _ := new(big.Rat).SetString(rates["input"])
		sum.Add(sum, rate.Mul(rate, big.NewRat(input, 1e6)))
	}
	exact := sum.Mul(sum, big.NewRat(1e9, 1))
	whole, rest := new(big.Int).QuoRem(exact.Num(), exact.Denom(), new(big.Int))
	whole.Add(whole, big.NewInt(int64(rest.Sign())))
	return a.Cost(input), new(big.Rat).SetFrac(whole, big.NewInt(1e9)).FloatString(9)
}

// Each answer costs what its bill says, in tokens and in money, in both proxies, plain and as gzip.
func TestAnswersOfAllAPIsCostTheirBills(t *testing.T) {
	t.Parallel()
	dsn := policytest.Open(t, `SELECT rate_limit_rule('bill', count_by => '{header:X-Case}', limits =>
		'{money=1000000 money/30d,tokens=9000000 tokens/30d}', algorithm => 'fixed_window');`+pricesSQL(t))
	answers, rates := llm.Answers(t), llm.Rates(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server in Go may cut a response that it passes on while it sends a body: go.dev/issue/40747.
		if n, _ := io.Copy(io.Discard, r.Body); n > 0 && r.Method == http.MethodGet {
			t.Errorf("%s has a body of %d bytes", r.URL.Path, n)
		}
		name, zipped := strings.CutPrefix(r.Header.Get("X-Answer"), "gzip-")
		answers[name].Respond(w, zipped)
	}))
	t.Cleanup(upstream.Close)
	proxies := bothProxies(t, dsn, upstream.URL, object{"policy": object{}})
	awaitPolicyApplied(t, dsn, 2)
	var want, estimates []string
	for proxy, url := range proxies {
		for name, a := range answers {
			if a.PriceOf == "" {
				continue
			}
			for _, sent := range []string{"", "gzip-"} {
				r := a.Ask(t, url)
				r.Header.Set("X-Answer", sent+name)
				r.Header.Set("X-Case", proxy+"-"+sent+name)
				check.Equal(t, proxy+"-"+sent+name, harness.Ask(t, r).Status, a.Status)
				tokens, money := billOf(a, rates[a.PriceOf])
				if tokens > 0 || money != "0.000000000" {
					want = append(want, fmt.Sprint(proxy, "-", sent, name, " ", tokens, " ", money))
				}
				if a.Charged == nil && a.Parts[option.Input] < 0 { // nothing was reported
					estimates = append(estimates, proxy+"-"+sent+name+" "+money)
				}
			}
		}
	}
	slices.Sort(want)
	await(t, "the settlements", func() bool {
		return cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_used WHERE held > 0") == 0
	})
	got := cluster.Texts(t, dsn, `SELECT concat_ws(' ', m.key, coalesce(t.used, 0), m.used)
		FROM rate_limit_used m LEFT JOIN rate_limit_used t ON t.key = m.key AND t.limit_name = 'tokens'
		WHERE m.limit_name = 'money' AND m.used > 0`)
	slices.Sort(got)
	check.Equal(t, "the counters", strings.Join(got, "\n"), strings.Join(want, "\n"))
	got = cluster.Texts(t, dsn, `SELECT concat_ws(' ', c ->> 'key', coalesce(max(c ->> 'units')
			FILTER (WHERE c ->> 'unit' = 'tokens'), '0'), l.money)
		FROM (SELECT sum(money) AS money, jsonb_agg(charges) -> 0 AS charges FROM (
			SELECT * FROM rate_limit_ledger_rows() ORDER BY id, line) l GROUP BY id) l,
			jsonb_array_elements(l.charges) c WHERE l.money > 0 GROUP BY c ->> 'key', l.charges, l.money`)
	slices.Sort(got)
	check.Equal(t, "the ledger", strings.Join(got, "\n"), strings.Join(want, "\n"))
	got = cluster.Texts(t, dsn, `SELECT DISTINCT concat_ws(' ', c ->> 'key', l.estimated_money)
		FROM rate_limit_ledger_rows() l, jsonb_array_elements(l.charges) c WHERE l.estimated_money > 0`)
	slices.Sort(got)
	slices.Sort(estimates)
	check.Equal(t, "the estimates", strings.Join(got, "\n"), strings.Join(estimates, "\n"))
	text := run(t, ".", buildCaddy(t), "pg-ratelimit", "--dsn", dsn, "prices", "correct", "*", "--from", "1d")
	if !strings.Contains(text, "The requests cost what the prices say.") {
		t.Errorf("billed again: got %s\nwant no difference", text)
	}
}
