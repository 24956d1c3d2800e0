package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

var correctCommand = commandSpec{
	use:   "correct MODEL --from TIME [--until TIME] [--reason REASON --yes]",
	short: "Bills requests again by the prices that hold now for the time when they came",
	long: `First set the right price, with valid for a time that is over. MODEL may be a pattern, such as
gpt-*. The command shows what the requests that were charged in the time cost before and after, by model, by
price and by each user who sent them or was above, and changes nothing without --yes.

What a request costs more or less becomes a row of the ledger of today, with its reason: a line of its own
on the invoice of the present period, which names the corrected one. Earlier invoices stay as they are. A
durable counter of a limit in money follows if the charge is in its running window, and was not reset since. A
request that has no price keeps what it costs. A second run corrects only what has changed since, also after
a run that was stopped, or what was charged later by an old price: RUNNING is the number of requests that
proxies have reported, within 3 seconds, and that are not charged yet.`,
	example: `prices set gpt-4o input=2.5 output=10 valid=2026-11-01..2026-11-15
prices correct gpt-4o --from 2026-11-01 --until 2026-11-15
prices correct gpt-4o --from 2026-11-01 --until 2026-11-15 --reason 'typing error' --yes`,
	flags: []flag{
		{name: "from", kind: pastTime, required: true, usage: "charged since: an age such as 30d, or a time"},
		{name: "until", kind: moment, usage: "come or charged before this time"},
		{name: "reason", usage: "the reason, for the ledger"},
		{name: "yes", value: false, usage: "make the corrections"},
	},
	runGo: correctPrices,
}

// bill is a row of rate_limit_bills.
type bill struct {
	ID    string
	Time  time.Time
	Users []string // who has sent the request, and who was above
	Tier  string
	Lines []billLine
}

type billLine struct {
	Model      string
	Billionths *int64 // nil without a price
	Parts      option.Parts
}

// rated is an element of the argument of rate_limit_correct.
type rated struct {
	ID    string      `json:"id"`
	Time  time.Time   `json:"time"`
	Lines []ratedLine `json:"lines"`
}

type ratedLine struct {
	Billionths *int64 `json:"billionths,omitempty"`
	Price      string `json:"price,omitempty"`
	PriceValid string `json:"price_valid,omitempty"`
}

// differences are the sums of lines of a model that a price makes cost more or less.
type differences struct {
	Model         string      `json:"model"`
	Price         string      `json:"price"`
	User          string      `json:"user"`
	Requests      int         `json:"requests"`
	Before        json.Number `json:"before"`
	After         json.Number `json:"after"`
	before, after int64
}

// correctedAtOnce bounds the requests of a transaction, which locks their counters.
const correctedAtOnce = 500

// corrections are the requests that cost more or less now, and what they cost together.
type corrections struct {
	requests, unpriced int
	changed            []rated
	sums               map[[3]string]*differences // by model, price and user
}

// add compares what a bill costs with what it costs by prices.
func (all *corrections) add(s *policy.Snapshot, b *bill) {
	all.requests++
	lines, isPriced := rate(s, b)
	if !isPriced {
		all.unpriced++
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
			key := [3]string{b.Lines[i].Model, line.PriceModel(b.Lines[i].Model), user}
			sum := all.sums[key]
			if sum == nil {
				sum = &differences{Model: key[0], Price: key[1], User: key[2]}
				all.sums[key] = sum
			}
			sum.Requests++
			sum.after += *line.Billionths
			if old != nil {
				sum.before += *old
			}
		}
	}
	if differs {
		all.changed = append(all.changed, rated{b.ID, b.Time, lines})
	}
}

// list returns the sums in their order.
func (all *corrections) list() []*differences {
	list := []*differences{}
	for _, sum := range all.sums {
		sum.Before, sum.After = money(sum.before), money(sum.after)
		list = append(list, sum)
	}
	slices.SortFunc(list, func(a, b *differences) int {
		return slices.Compare([]string{a.Model, a.Price, a.User}, []string{b.Model, b.Price, b.User})
	})
	return list
}

// correctionReport is what the command prints. Differing is the number of requests that cost more or less
// now, and Corrected that of the ones that the command has corrected. If a proxy of an older version does not
// report how many requests run, Running is nil, and Unreported has the names of such proxies.
type correctionReport struct {
	Requests   int            `json:"requests"`
	Differing  int            `json:"differing"`
	Corrected  int            `json:"corrected"`
	Unpriced   int            `json:"without_a_price"`
	Running    *json.Number   `json:"running"`
	Unreported []string       `json:"running_not_reported_by,omitempty"`
	Changes    []*differences `json:"changes"`
}

func correctPrices(c *invocation) error {
	yes := c.boolFlag("yes")
	if yes && strings.TrimSpace(c.flag("reason")) == "" {
		return invalid("--reason", "", "given with --yes")
	}
	all := &corrections{sums: map[[3]string]*differences{}}
	if err := c.eachBill(all.add); err != nil {
		return err
	}
	report := correctionReport{Requests: all.requests, Differing: len(all.changed), Unpriced: all.unpriced,
		Changes: all.list()}
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
			report.Corrected += made.Corrected
		}
	}
	running, err := c.rows(`SELECT CASE WHEN count(*) = count(r.n) THEN coalesce(sum(r.n), 0) END AS running,
	array_agg(r.node ORDER BY r.node) FILTER (WHERE r.n IS NULL) AS running_not_reported_by
FROM (SELECT n.node, substring(n.report ->> 'running' FROM '^[0-9]{1,15}$')::bigint AS n
	FROM rate_limit_nodes n
	WHERE n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s') r`)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(running[0], &report); err != nil {
		return err
	}
	err = c.show(report, "")
	switch {
	case err != nil || c.json:
		return err
	case all.requests == 0:
		return c.printf("\nThe ledger of this database has no requests of this model and time.\n")
	case len(all.changed) == 0:
		return c.printf("\nThe requests cost what the prices say.\n")
	case !yes:
		return c.printf("\nNothing is changed: this was a dry run, and --yes makes the corrections.\n")
	}
	return nil
}

// PriceModel returns the model of the row of prices of a line of a model.
func (l *ratedLine) PriceModel(model string) string {
	if l.Price == "" {
		return model
	}
	return l.Price
}

// money formats billionths.
func money(billionths int64) json.Number {
	return json.Number(fmt.Sprintf("%d.%09d", billionths/1_000_000_000, billionths%1_000_000_000))
}

// eachBill calls f with the bills that MODEL and the flags select, and with all prices.
func (c *invocation) eachBill(f func(s *policy.Snapshot, b *bill)) error {
	prices, err := c.rows("SELECT " + policy.PriceSQL + " AS price FROM rate_limit_prices p")
	if err != nil {
		return err
	}
	if len(prices) == 0 {
		return errors.New("this database has no prices: corrections are made where the ledger is, and if " +
			"the policy is on another server, the right prices are set there, too")
	}
	rows := make([]policy.Price, len(prices))
	for i, row := range prices {
		if err := json.Unmarshal(row, &struct{ Price *policy.Price }{&rows[i]}); err != nil {
			return err
		}
	}
	snapshot := policy.Compile(nil, nil, nil, 0).WithPrices(rows)
	result, err := c.conn.Query(c.ctx, `SELECT json_build_object('ID', b.id, 'Time', b.time, 'Tier', b.tier,
	'Lines', b.lines, 'Users', ARRAY(SELECT DISTINCT coalesce(u, '') FROM unnest(b.user_id || b.ancestors) u))
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
		f(snapshot, &b)
	}
	return result.Err()
}

// rate returns what the lines of a bill cost, as a proxy does, and whether each has a price.
func rate(s *policy.Snapshot, b *bill) (lines []ratedLine, isPriced bool) {
	at := batch.PricedAt(b.ID)
	if at == 0 {
		at = b.Time.UnixMicro()
	}
	if b.Tier == "" {
		b.Tier = "standard"
	}
	own := policy.PriceOf(s, b.Lines[0].Model, at)
	var total policy.Total
	isPriced = true
	for i := range b.Lines {
		price := policy.PriceOf(s, b.Lines[i].Model, at)
		if price == nil {
			price = own
		}
		var line ratedLine
		if price == nil {
			isPriced = false
		} else {
			cost := total.Add(price.Cost(b.Lines[i].Parts, b.Tier))
			line.Billionths = &cost
			line.PriceValid = price.Valid
			if price.Model != b.Lines[i].Model {
				line.Price = price.Model
			}
		}
		lines = append(lines, line)
	}
	return lines, isPriced
}
