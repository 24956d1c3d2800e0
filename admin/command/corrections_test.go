package command_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// columnsOfParts are the columns of the ledger with parts, and of prices in the same order.
var columnsOfParts = option.PartNames[:option.Request]

// drawnPrices are rows of rate_limit_prices, by model.
type drawnPrices map[string]map[string]string

// drawPrices draws the prices of some models.
func drawPrices(t *rapid.T) drawnPrices {
	prices := drawnPrices{}
	for _, model := range []string{"m", "n", "m*"} {
		if model != "m" && rapid.Bool().Draw(t, "has no price") {
			continue
		}
		rates := map[string]string{}
		for _, name := range []string{"input", "output", "audio_input", "search", "request", "input@50",
			"flex."} {
			if name == "input" || name == "output" || rapid.Bool().Draw(t, name) {
				rates[name] = fmt.Sprintf("%d.%04d", rapid.IntRange(0, 3).Draw(t, "whole"),
					rapid.IntRange(0, 9999).Draw(t, "fraction"))
			}
		}
		prices[model] = rates
	}
	return prices
}

// sql returns SQL that replaces all prices.
func (p drawnPrices) sql() string {
	sql := "DELETE FROM rate_limit_prices;"
	for model, rates := range p {
		parts, tiers := []string{}, "NULL"
		for name, rate := range rates {
			switch name {
			case "input", "output":
			case "flex.":
				tiers = "'{flex=" + rate + "}'"
			default:
				parts = append(parts, name+"="+rate)
			}
		}
		list := "NULL"
		if len(parts) > 0 {
			list = "'{" + strings.Join(parts, ",") + "}'"
		}
		sql += fmt.Sprintf("SELECT rate_limit_price('%s', %s, %s, parts => %s, tiers => %s);", model,
			rates["input"], rates["output"], list, tiers)
	}
	return sql
}

// of returns the price of a model, or nil.
func (p drawnPrices) of(model string) *policy.Price {
	for _, name := range []string{model, model[:1] + "*"} {
		if p[name] != nil {
			price := &policy.Price{Model: name, Rates: p[name]}
			price.Prepare()
			return price
		}
	}
	return nil
}

// drawnRequest is a request of the ledger.
type drawnRequest struct {
	days   int    // how many days ago it was charged
	tier   string // "" for standard
	models []string
	parts  []option.Parts
	exact  *big.Rat // what it costs, in millionths; nil without a price for the first model
}

func drawRequest(t *rapid.T) *drawnRequest {
	r := &drawnRequest{days: rapid.SampledFrom([]int{0, 3}).Draw(t, "days ago"),
		tier: rapid.SampledFrom([]string{"", "flex"}).Draw(t, "tier")}
	for i := range rapid.IntRange(1, 3).Draw(t, "lines") {
		model := "m"
		if i > 0 {
			model = rapid.SampledFrom([]string{"m", "n", "other"}).Draw(t, "model")
		}
		var parts option.Parts
		for _, part := range []int{option.Input, option.Output, option.AudioInput, option.Search} {
			parts[part] = int64(rapid.IntRange(0, 99).Draw(t, "tokens"))
		}
		if i == 0 {
			parts[option.Request] = 1
		}
		r.models, r.parts = append(r.models, model), append(r.parts, parts)
	}
	return r
}

// bill sets what a request costs by prices, and returns the lines of its row. All models have a price.
func (r *drawnRequest) bill(prices drawnPrices) []json.Number {
	tier := r.tier
	if tier == "" {
		tier = "standard"
	}
	own := prices.of(r.models[0])
	var total policy.Total
	var lines []json.Number
	r.exact = new(big.Rat)
	for i, model := range r.models {
		price := prices.of(model)
		if price == nil {
			price = own
		}
		cost := price.Cost(r.parts[i], tier)
		r.exact.Add(r.exact, cost)
		lines = append(lines, batch.Exact(total.Add(cost)))
	}
	return lines
}

// row returns SQL that adds the request to the ledger.
func (r *drawnRequest) row(lines []json.Number) string {
	var objects, charges []string
	for _, user := range []string{"ann", "team", "org"} {
		charges = append(charges, fmt.Sprintf(`{"prefix": "rule/r/l", "key": "%s", "durable": true,
			"unit": "money", "units": %s}`, user, r.exact.FloatString(3)))
	}
	for i, money := range lines {
		object := []string{`"model": "` + r.models[i] + `"`, `"money": ` + string(money)}
		for part, name := range columnsOfParts {
			object = append(object, fmt.Sprintf(`"%s": %d`, name, r.parts[i][part]))
		}
		objects = append(objects, "{"+strings.Join(object, ", ")+"}")
	}
	columns := strings.Join(columnsOfParts, ", ")
	return fmt.Sprintf(`INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, tier, charges,
			lines, model, money, remainder, %[1]s)
		SELECT (now() AT TIME ZONE 'UTC')::date - %[2]d, gen_random_uuid(), now() - %[2]d * interval '1 day',
			'ann', '{team,org}', nullif('%[3]s', ''), '[%[7]s]', nullif('[%[4]s]'::jsonb - 0, '[]'), l.model,
			ceil(l.money), (l.money - ceil(l.money)) * 1000, l.%[5]s
		FROM jsonb_to_record('[%[4]s]'::jsonb -> 0) AS l(model text, money numeric, %[6]s bigint);`, columns,
		r.days, r.tier, strings.Join(objects, ", "), strings.ReplaceAll(columns, ", ", ", l."),
		strings.ReplaceAll(columns, ", ", " bigint, "), strings.Join(charges, ", "))
}

// drawnCounter is a counter of money, in billionths. Its window began a day or some days ago.
type drawnCounter struct {
	user     string
	began    int // days ago; -1 for a counter that was reset
	count    int64
	slides   bool
	previous int64 // what the window before has, if the window slides
}

func drawCounter(t *rapid.T, user string, costs map[int]int64) *drawnCounter {
	c := &drawnCounter{user: user, began: rapid.SampledFrom([]int{1, 9}).Draw(t, "days"),
		slides: rapid.Bool().Draw(t, "slides")}
	if rapid.IntRange(0, 3).Draw(t, "is kept") > 0 { // else a crash has emptied it
		c.count = costs[0]
		if c.began == 9 {
			c.count += costs[3]
		} else if c.slides {
			c.previous = (costs[3] + 999) / 1000 * 1000
		}
	}
	return c
}

// sql returns SQL that writes the counter.
func (c *drawnCounter) sql() string {
	previous := "NULL"
	if c.slides {
		previous = fmt.Sprint(c.previous / 1000)
	}
	units := (c.count + 999) / 1000
	return fmt.Sprintf(`INSERT INTO rate_limit_durable (prefix, key, count, remainder, prev_count,
			window_start, expires_at)
		SELECT 'rule/r/l', '%s', %d, nullif(%d, 0), %s, m, m + interval '20 days'
		FROM (SELECT now() - interval '%d days' AS m) m;`, c.user, units, c.count-units*1000, previous,
		c.began)
}

// correct changes the counter by what requests of some days ago cost more.
func (c *drawnCounter) correct(more map[int]int64) {
	if c.began < 0 {
		return
	}
	change := more[0]
	if c.began == 9 {
		change += more[3]
	} else if c.previous > 0 {
		c.previous = max(0, c.previous+int64(math.Ceil(float64(more[3])/1000))*1000)
	}
	c.count = max(0, c.count+change)
}

// costsOf returns what requests cost by prices, in billionths, by the days since they were charged.
func costsOf(requests []*drawnRequest, prices drawnPrices) map[int]int64 {
	costs := map[int]int64{}
	for _, r := range requests {
		r.bill(prices)
		costs[r.days] += policy.Billionths(r.exact)
	}
	return costs
}

// correctedBed is a ledger of requests, with the counters of who sent them and was above.
type correctedBed struct {
	*shell
	t        *rapid.T
	requests []*drawnRequest
	costs    map[int]int64 // see costsOf
	counters []*drawnCounter
	before   string // the invoice of the days that are over
}

// startCorrectedBed replaces all prices, requests and counters by others.
func startCorrectedBed(t *rapid.T, s *shell) *correctedBed {
	cluster.AwaitDay()
	b := &correctedBed{shell: s, t: t}
	s.sql(`DO $$ BEGIN PERFORM rate_limit_ledger_upkeep((now() AT TIME ZONE 'UTC')::date - 3);
		EXECUTE format('ALTER TABLE rate_limit_ledger_%s DROP CONSTRAINT IF EXISTS day_is_summed',
			to_char((now() AT TIME ZONE 'UTC')::date - 3, 'YYYYMMDD'));
		TRUNCATE rate_limit_ledger, rate_limit_totals, rate_limit_ledger_days, rate_limit_durable; END $$`)
	prices := drawPrices(t)
	rows := prices.sql()
	for range rapid.IntRange(1, 8).Draw(t, "requests") {
		r := drawRequest(t)
		rows += r.row(r.bill(prices))
		b.requests = append(b.requests, r)
	}
	b.costs = costsOf(b.requests, prices)
	for _, user := range []string{"ann", "team", "org"} {
		c := drawCounter(t, user, b.costs)
		rows += c.sql()
		b.counters = append(b.counters, c)
	}
	s.sql(rows)
	for cluster.Query[bool](s.t, s.dsn, "SELECT rate_limit_totals_upkeep()") {
	}
	b.before = b.invoice("org", "")
	return b
}

// invoice returns the money and the requests of a user in the days until a time after today's midnight.
func (b *correctedBed) invoice(user, until string) string {
	return cluster.Query[string](b.shell.t, b.dsn, fmt.Sprintf(`SELECT concat_ws(' ', sum(money),
			sum(requests))
		FROM rate_limit_invoice('%s', date_trunc('day', now(), 'UTC') - interval '9 days',
			date_trunc('day', now(), 'UTC') %s)`, user, until))
}

// check compares the invoices and the counters with what the requests cost.
func (b *correctedBed) check() {
	all := b.costs[0] + b.costs[3]
	want := fmt.Sprintf("%d.%09d %d", all/1e9, all%1e9, len(b.requests))
	for what, values := range map[string][2]string{
		"the invoice":                {b.invoice("org", "+ interval '1 day'"), want},
		"that of the user":           {b.invoice("ann", "+ interval '1 day'"), want},
		"that of days that are over": {b.invoice("org", ""), b.before},
	} {
		if values[0] != values[1] {
			b.t.Fatalf("%s: got %q, want %q", what, values[0], values[1])
		}
	}
	for _, c := range b.counters {
		got := cluster.Query[string](b.shell.t, b.dsn, fmt.Sprintf(`SELECT concat_ws(' ', count * 1000::bigint
			+ coalesce(remainder, 0), coalesce(prev_count, 0) * 1000::bigint)
			FROM rate_limit_durable WHERE key = '%s'`, c.user))
		if want := fmt.Sprint(c.count, c.previous); got != want {
			b.t.Fatalf("the counter %+v: got %s, want %s", c, got, want)
		}
	}
}

// However prices, requests and corrections follow each other, each request costs after a correction what the
// prices say, to the billionth, and a second correction finds nothing. The invoice of days that are over
// stays, and that of today has the differences. Counters follow by what their window has, unless they were
// reset.
func TestCorrectedRequestsCostWhatTheRightPricesSay(t *testing.T) {
	s := newShell(t, schema.File)
	conformance.Check(t, 12, func(t *rapid.T) {
		b := startCorrectedBed(t, s)
		for range rapid.IntRange(1, 2).Draw(t, "corrections") {
			c := rapid.SampledFrom(b.counters).Draw(t, "counter")
			if rapid.Bool().Draw(t, "is reset") {
				s.sql(fmt.Sprintf("SELECT rate_limit_reset('rule/r/l', '%s')", c.user))
				c.began, c.count, c.previous = -1, 0, 0
			}
			right := drawPrices(t)
			s.sql(right.sql())
			costs := costsOf(b.requests, right)
			for range 2 {
				s.mustRun("prices", "correct", "*", "--from", "9d", "--reason", "a test", "--yes")
				for _, c := range b.counters {
					c.correct(map[int]int64{0: costs[0] - b.costs[0], 3: costs[3] - b.costs[3]})
				}
				b.costs = costs
				b.check()
			}
			text := s.mustRun("prices", "correct", "m", "--from", "9d")
			if !strings.Contains(text, "corrected        0\n") {
				t.Fatalf("a further run: %s", text)
			}
		}
	})
}
