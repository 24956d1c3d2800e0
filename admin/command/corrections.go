package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

var correctCommand = commandSpec{
	use:   "correct MODEL --from TIME",
	short: "Bills requests again by the prices that hold now for the time when they came",
	long: `First set the right price, with valid for a time that is over. MODEL may be a pattern, such as
gpt-*. Without --yes, the command only shows what the requests that were charged in the time cost
before and after, by model, price, and each user who sent them or was above.

A difference becomes a row of the ledger of today: a line of its own on the invoice of the present
period. Earlier invoices stay as they are. A durable counter of a limit in money follows if the
charge is in its running window, and was not reset since. A request without a price keeps its cost.
A second run corrects only what has changed since, or was charged later by an old price: RUNNING is
the number of requests, as of 3 seconds ago, that are not charged yet.`,
	example: `prices set gpt-4o input=2.5 output=10 valid=2026-11-01..2026-11-15
prices correct gpt-4o --from 2026-11-01 --until 2026-11-15
prices correct gpt-4o --from 2026-11-01 --until 2026-11-15 --reason 'typing error' --yes`,
	flags: []flag{
		{name: "from", kind: pastTime, required: true, usage: "charged since: an age such as 30d, or a time"},
		{name: "until", kind: moment, usage: "come or charged before this time"},
		{name: "reason", usage: "the reason, for the ledger"},
		toggle("yes", "make the corrections"),
	},
	runGo: correctPrices,
}

// bill is a row of rate_limit_bills, and an element of the argument of rate_limit_correct.
type bill struct {
	ID    string     `json:"id"`
	Time  time.Time  `json:"time"`
	Users []string   `json:"users"` // who has sent the request, and who was above
	Tier  string     `json:"tier"`
	Lines []billLine `json:"lines"`
}

type billLine struct {
	Model      string       `json:"model"`
	Billionths *int64       `json:"billionths,omitempty"` // nil without a price
	Parts      option.Parts `json:"parts"`
	// The row of prices, which rate sets. Price is "" if it has the name of the model.
	Price      string `json:"price,omitempty"`
	PriceValid string `json:"price_valid,omitempty"`
}

// billionths is an amount of money.
type billionths int64

// MarshalJSON implements json.Marshaler.
func (n billionths) MarshalJSON() ([]byte, error) {
	return []byte(decimal.New(int64(n), -9).StringFixed(9)), nil
}

// difference has the sums of lines of a model that a price makes cost more or less.
type difference struct {
	Model    string     `json:"model"`
	Price    string     `json:"price"`
	User     string     `json:"user"`
	Requests int        `json:"requests"`
	Before   billionths `json:"before"`
	After    billionths `json:"after"`
}

// correctedAtOnce bounds the requests of a transaction, which locks their counters.
const correctedAtOnce = 500

// corrections is what the command prints. Differing is the number of requests that cost more or less now, and
// Corrected that of the ones that the command has corrected. If a proxy of an older version does not report
// how many requests run, Running is nil, and Unreported has the names of such proxies.
type corrections struct {
	Requests   int           `json:"requests"`
	Differing  int           `json:"differing"`
	Corrected  int           `json:"corrected"`
	Unpriced   int           `json:"without_a_price"`
	Running    *json.Number  `json:"running"`
	Unreported []string      `json:"running_not_reported_by,omitempty"`
	Changes    []*difference `json:"changes"`

	changed []bill                    // with their new prices
	sums    map[[3]string]*difference // by model, price and user
}

// add compares what a bill costs with what it costs by prices.
func (all *corrections) add(prices policy.Prices, b *bill) {
	all.Requests++
	lines, isPriced := rate(prices, b)
	if !isPriced {
		all.Unpriced++
	}
	differs := false
	for i, line := range lines {
		old := b.Lines[i].Billionths
		if line.Billionths == nil || old != nil && *old == *line.Billionths ||
			old == nil && *line.Billionths == 0 {
			continue
		}
		differs = true
		for _, user := range b.Users {
			key := [3]string{line.Model, cmp.Or(line.Price, line.Model), user}
			sum := all.sums[key]
			if sum == nil {
				sum = &difference{Model: key[0], Price: key[1], User: key[2]}
				all.sums[key] = sum
				all.Changes = append(all.Changes, sum)
			}
			sum.Requests++
			sum.After += billionths(*line.Billionths)
			if old != nil {
				sum.Before += billionths(*old)
			}
		}
	}
	if differs {
		b.Lines = lines
		all.changed = append(all.changed, *b)
	}
}

func correctPrices(c *invocation) error {
	yes := c.boolFlag("yes")
	if yes && strings.TrimSpace(c.flag("reason")) == "" {
		return invalid("--reason", "", "given with --yes")
	}
	all := &corrections{Changes: []*difference{}, sums: map[[3]string]*difference{}}
	if err := c.eachBill(all.add); err != nil {
		return err
	}
	if yes {
		for part := range slices.Chunk(all.changed, correctedAtOnce) {
			bills, err := json.Marshal(part)
			if err != nil {
				return err
			}
			c.values["bills"] = string(bills)
			rows, err := c.change("SELECT rate_limit_correct(@bills::jsonb, @reason) AS corrected")
			if err != nil {
				return err
			}
			var made struct{ Corrected int }
			if err := json.Unmarshal(rows[0], &made); err != nil {
				return err
			}
			all.Corrected += made.Corrected
		}
	}
	running, err := c.rows(`SELECT CASE WHEN count(*) = count(r.n) THEN coalesce(sum(r.n), 0) END AS running,
	array_agg(r.node ORDER BY r.node) FILTER (WHERE r.n IS NULL) AS running_not_reported_by
FROM (SELECT n.node, substring(n.report ->> 'running' FROM '^[0-9]{1,15}$')::bigint AS n
	FROM rate_limit_nodes n WHERE ` + schema.NodeIsLive + `) r`)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(running[0], all); err != nil {
		return err
	}
	all.Differing = len(all.changed)
	slices.SortFunc(all.Changes, func(a, b *difference) int {
		return slices.Compare([]string{a.Model, a.Price, a.User}, []string{b.Model, b.Price, b.User})
	})
	err = c.show(all)
	switch {
	case err != nil || c.json:
		return err
	case all.Requests == 0:
		return c.printf("\nThe ledger of this database has no requests of this model and time.\n")
	case len(all.changed) == 0:
		return c.printf("\nThe requests cost what the prices say.\n")
	case !yes:
		return c.printf("\nNothing is changed: this was a dry run, and --yes makes the corrections.\n")
	}
	return nil
}

// eachBill calls f with the bills that MODEL and the flags select, and with all prices.
func (c *invocation) eachBill(f func(prices policy.Prices, b *bill)) error {
	var rows []policy.Price
	err := c.conn.QueryRow(c.ctx, "SELECT coalesce(json_agg("+policy.PriceSQL+"), '[]') "+
		"FROM rate_limit_prices p").Scan(&rows)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errors.New("this database has no prices: corrections are made where the ledger is, and if " +
			"the policy is on another server, the right prices are set there, too")
	}
	prices := policy.NewPrices(rows)
	result, err := c.conn.Query(c.ctx, `SELECT json_build_object('id', b.id, 'time', b.time, 'tier', b.tier,
	'lines', b.lines, 'users', ARRAY(SELECT DISTINCT coalesce(u, '') FROM unnest(b.user_id || b.ancestors) u))
FROM rate_limit_bills(@from::timestamptz, coalesce(@until::timestamptz, 'infinity'), @MODEL) b`, c.values)
	if err != nil {
		return err
	}
	defer result.Close()
	for result.Next() {
		var b bill
		if err := result.Scan(&b); err != nil {
			return err
		}
		f(prices, &b)
	}
	return result.Err()
}

// rate returns the lines of a bill with what they cost, as a proxy does, and whether each has a price.
func rate(prices policy.Prices, b *bill) (lines []billLine, isPriced bool) {
	prices.At = cmp.Or(batch.PricedAt(b.ID), b.Time.UnixMicro())
	own := prices.Of(b.Lines[0].Model)
	var total policy.Total
	lines, isPriced = slices.Clone(b.Lines), true
	for i := range lines {
		line := &lines[i]
		line.Billionths = nil
		price := cmp.Or(prices.Of(line.Model), own)
		if price == nil {
			isPriced = false
			continue
		}
		cost := total.Add(price.Cost(line.Parts, cmp.Or(b.Tier, "standard")))
		line.Billionths, line.PriceValid = &cost, price.Valid
		if price.Model != line.Model {
			line.Price = price.Model
		}
	}
	return lines, isPriced
}
