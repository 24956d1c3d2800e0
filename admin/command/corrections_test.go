package command_test

import (
	"encoding/json"
	"fmt"
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
	tier   string // "" for standard
	models []string
	parts  []option.Parts
	exact  *big.Rat // what it costs, in millionths; nil without a price for the first model
}

func drawRequest(t *rapid.T) *drawnRequest {
	r := &drawnRequest{tier: rapid.SampledFrom([]string{"", "flex"}).Draw(t, "tier")}
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
		added := total.Add(cost)
		units := (added + 999) / 1000
		lines = append(lines, batch.Exact(units, units*1000-added))
	}
	return lines
}

// row returns SQL that adds the request to the ledger, days ago.
func (r *drawnRequest) row(lines []json.Number, days int) string {
	var objects []string
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
			'ann', '{team,org}', nullif('%[3]s', ''), '[]', nullif('[%[4]s]'::jsonb - 0, '[]'), l.model,
			ceil(l.money), (l.money - ceil(l.money)) * 1000, l.%[5]s
		FROM jsonb_to_record('[%[4]s]'::jsonb -> 0) AS l(model text, money numeric, %[6]s bigint);`, columns,
		days, r.tier, strings.Join(objects, ", "), strings.ReplaceAll(columns, ", ", ", l."),
		strings.ReplaceAll(columns, ", ", " bigint, "))
}

// However prices, requests and corrections follow each other, each request costs after a correction what the
// prices say, to the billionth, and a second correction finds nothing. The invoice of days that are over
// stays, and that of today has the differences.
func TestCorrectedRequestsCostWhatTheRightPricesSay(t *testing.T) {
	s := newShell(t, schema.File)
	const sumOf = `SELECT concat_ws(' ', sum(money), sum(requests)) FROM rate_limit_invoice('%s',
		date_trunc('day', now(), 'UTC') - interval '%d days', date_trunc('day', now(), 'UTC') %s)`
	invoice := func(user string, from int, until string) string {
		return cluster.Query[string](t, s.dsn, fmt.Sprintf(sumOf, user, from, until))
	}
	conformance.Check(t, 12, func(t *rapid.T) {
		equal := func(what, got, want string) {
			if got != want {
				t.Fatalf("%s: got %q, want %q", what, got, want)
			}
		}
		s.sql(`DO $$ BEGIN PERFORM rate_limit_ledger_upkeep((now() AT TIME ZONE 'UTC')::date - 3);
			EXECUTE format('ALTER TABLE rate_limit_ledger_%s DROP CONSTRAINT IF EXISTS day_is_summed',
				to_char((now() AT TIME ZONE 'UTC')::date - 3, 'YYYYMMDD'));
			TRUNCATE rate_limit_ledger, rate_limit_totals, rate_limit_ledger_days; END $$`)
		wrong := drawPrices(t)
		var requests []*drawnRequest
		rows := ""
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			r := drawRequest(t)
			rows += r.row(r.bill(wrong), rapid.SampledFrom([]int{0, 3}).Draw(t, "days ago"))
			requests = append(requests, r)
		}
		s.sql(wrong.sql() + rows)
		for cluster.Query[bool](s.t, s.dsn, "SELECT rate_limit_totals_upkeep()") {
		}
		before := invoice("org", 9, "")
		for range rapid.IntRange(1, 2).Draw(t, "corrections") {
			right := drawPrices(t)
			s.sql(right.sql())
			for range 2 {
				s.mustRun("prices", "correct", "*", "--from", "9d", "--reason", "a test", "--yes")
				want := int64(0)
				for _, r := range requests {
					r.bill(right)
					want += policy.Billionths(r.exact)
				}
				text := fmt.Sprintf("%d.%09d %d", want/1e9, want%1e9, len(requests))
				equal("the invoice", invoice("org", 9, "+ interval '1 day'"), text)
				equal("that of the user", invoice("ann", 9, "+ interval '1 day'"), text)
				equal("that of days that are over", invoice("org", 9, ""), before)
			}
			equal("a further run", s.mustRun("prices", "correct", "m", "--from", "9d"),
				fmt.Sprintf("requests         %d\ncorrected        0\nwithout a price  0\n\n"+
					"The requests cost what the prices say.\n", len(requests)))
		}
	})
}
