package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Every column that the statements of this package return is a text. A value with many fields is
// one JSON text, which the standard library decodes: an interpreter would take long to decode it
// field by field. Times are microseconds since 1970, and NULL for no bound.

// beginSQL and endSQL return the SQL for the begin and the end of a period, in microseconds. An
// end before 1970, such as -infinity, becomes 1970.
func beginSQL(expression string) string {
	return "CASE WHEN " + expression + " BETWEEN '0001-01-02 00:00+00' AND '9999-12-31 00:00+00' THEN (extract(epoch FROM " + expression + ") * 1000000)::bigint END"
}

func endSQL(expression string) string {
	return "CASE WHEN " + expression + " < '1970-01-01 00:00+00' THEN 0 WHEN " + expression + " < '9999-12-31 00:00+00' THEN (extract(epoch FROM " + expression + ") * 1000000)::bigint END"
}

// rulesSQL returns the rules that can have an effect, each with its limits, and the overrides
// for tiers. Tables of an older version may lack without_header.
var rulesSQL = `SELECT * FROM (SELECT 'rule' AS part, r.name, json_build_object('family', r.family, 'priority', r.priority, 'mode', r.mode, 'action', r.action,
	'hosts', r.hosts, 'paths', r.paths, 'methods', r.methods, 'networks', r.networks, 'tiers', r.tiers, 'count_by', r.count_by,
	'from', ` + beginSQL("lower(r.valid)") + `, 'until', ` + endSQL("upper(r.valid)") + `, 'cost', r.cost, 'status', r.status, 'message', r.message,
	'retry_after', (extract(epoch FROM r.retry_after) * 1000000)::bigint, 'ban_for', (extract(epoch FROM r.ban_for) * 1000000)::bigint,
	'ban_after', r.ban_after, 'ban_within', (extract(epoch FROM r.ban_within) * 1000000)::bigint,
	'without_header', to_jsonb(r)->>'without_header',
	'limits', (SELECT json_agg(json_build_object('name', l.name, 'algorithm', l.algorithm, 'events', l.events, 'per', (extract(epoch FROM l.per) * 1000000)::bigint,
		'calendar', l.calendar, 'zone', l.time_zone, 'burst', l.burst, 'durable', l.durable, 'overage', l.on_exceed = 'overage') ORDER BY l.name)
		FROM rate_limit_rule_limits l WHERE l.rule = r.name))::text
FROM rate_limit_rules r WHERE r.mode <> 'off' AND (upper_inf(r.valid) OR upper(r.valid) > now()) AND (lower_inf(r.valid) OR lower(r.valid) < '9999-12-31 00:00+00')
UNION ALL
SELECT 'override', o.rule, ` + overrideSQL + `::text FROM rate_limit_overrides o WHERE o.tier IS NOT NULL AND ` + overrideDueSQL + `) AS a ORDER BY 1, 2, 3`

// overrideSQL is an override as JSON. overrideDueSQL says whether an override can have an
// effect.
var overrideSQL = `json_build_object('rule', o.rule, 'limit', o.limit_name, 'tier', o.tier, 'user', o.user_id, 'key', o.key_id,
	'events', o.events, 'burst', o.burst, 'from', ` + beginSQL("lower(o.valid)") + `, 'until', ` + endSQL("upper(o.valid)") + `)`

const overrideDueSQL = `(upper_inf(o.valid) OR upper(o.valid) > now()) AND (lower_inf(o.valid) OR lower(o.valid) < '9999-12-31 00:00+00')`

// bansSQL returns the bans of networks. Bans of users and keys come with their identities.
var bansSQL = `SELECT b.network::text, coalesce((` + endSQL("b.until") + `)::text, ''), coalesce(b.reason, '')
FROM rate_limit_bans b WHERE b.network IS NOT NULL AND b.until > now() ORDER BY 1`

// ruleJSON is a rule of rulesSQL. NULL is the zero value.
type ruleJSON struct {
	Family     string      `json:"family"`
	Priority   int64       `json:"priority"`
	Mode       string      `json:"mode"`
	Action     string      `json:"action"`
	Hosts      []string    `json:"hosts"`
	Paths      []string    `json:"paths"`
	Methods    []string    `json:"methods"`
	Networks   []string    `json:"networks"`
	Tiers      []string    `json:"tiers"`
	CountBy    []string    `json:"count_by"`
	From       *int64      `json:"from"`
	Until      *int64      `json:"until"`
	Cost       int64       `json:"cost"`
	Status     int         `json:"status"`
	Message    string      `json:"message"`
	RetryAfter int64       `json:"retry_after"`
	BanFor     int64       `json:"ban_for"`
	BanAfter   int64       `json:"ban_after"`
	BanWithin  int64       `json:"ban_within"`
	Without    string      `json:"without_header"`
	Limits     []limitJSON `json:"limits"`
}

type limitJSON struct {
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	Events    *int64 `json:"events"`
	Per       int64  `json:"per"`
	Calendar  string `json:"calendar"`
	Zone      string `json:"zone"`
	Burst     int64  `json:"burst"`
	Durable   bool   `json:"durable"`
	Overage   bool   `json:"overage"`
}

type overrideJSON struct {
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
	Tier   string `json:"tier"`
	User   string `json:"user"`
	Key    int64  `json:"key"`
	Events *int64 `json:"events"`
	Burst  int64  `json:"burst"`
	From   *int64 `json:"from"`
	Until  *int64 `json:"until"`
}

// timeOf is a time in microseconds; nil is the zero time.
func timeOf(micros *int64) time.Time {
	if micros == nil {
		return time.Time{}
	}
	return time.UnixMicro(*micros)
}

// readRules reads the rules and the overrides for tiers, for decodeRules.
func readRules(ctx context.Context, db postgres.DB) ([]string, error) {
	rows, err := runOne(ctx, db, &postgres.Statement{SQL: rulesSQL}, 3)
	if err != nil {
		return nil, fmt.Errorf("reading the rules: %w", err)
	}
	return rows, nil
}

// readBans reads the bans of networks, for decodeBans.
func readBans(ctx context.Context, db postgres.DB) ([]string, error) {
	rows, err := runOne(ctx, db, &postgres.Statement{SQL: bansSQL}, 3)
	if err != nil {
		return nil, fmt.Errorf("reading the bans: %w", err)
	}
	return rows, nil
}

// decodeRules turns rows of rulesSQL into rules and overrides.
func decodeRules(rows []string) ([]Rule, []Override, error) {
	if len(rows)%3 != 0 {
		return nil, nil, errColumns
	}
	var rules []Rule
	var overrides []Override
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "rule" {
			rules = append(rules, decodeRule(rows[i+1], rows[i+2]))
			continue
		}
		var o overrideJSON
		if err := json.Unmarshal([]byte(rows[i+2]), &o); err != nil {
			return nil, nil, fmt.Errorf("the overrides of the rule %q: %w", rows[i+1], err)
		}
		overrides = append(overrides, o.override())
	}
	return rules, overrides, nil
}

// decodeBans turns rows of bansSQL into bans.
func decodeBans(rows []string) ([]Ban, error) {
	if len(rows)%3 != 0 {
		return nil, errColumns
	}
	bans := make([]Ban, 0, len(rows)/3)
	for i := 0; i < len(rows); i += 3 {
		network, err := netip.ParsePrefix(rows[i])
		if err != nil {
			return nil, fmt.Errorf("the ban of %s: %w", rows[i], err)
		}
		ban := Ban{Network: network, Reason: rows[i+2]}
		if rows[i+1] != "" {
			until, err := strconv.ParseInt(rows[i+1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("the ban of %s: %w", rows[i], err)
			}
			ban.Until = time.UnixMicro(until)
		}
		bans = append(bans, ban)
	}
	return bans, nil
}

// decodeRule is a rule of rulesSQL. If it cannot be used, only Name and Err are set.
func decodeRule(name, text string) Rule {
	var row ruleJSON
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		return Rule{Name: name, Err: err}
	}
	r := Rule{
		Name: name, Family: row.Family, Priority: row.Priority, Hosts: row.Hosts, Paths: row.Paths, Methods: row.Methods,
		Tiers: row.Tiers, CountBy: row.CountBy, From: timeOf(row.From), Until: timeOf(row.Until), Cost: row.Cost,
		Status: row.Status, Message: row.Message, RetryAfter: time.Duration(row.RetryAfter) * time.Microsecond,
		SkipWithoutHeader: row.Without == "skip",
	}
	if row.BanFor != 0 {
		r.Ban = &BanAfter{
			Refusals: row.BanAfter, Within: time.Duration(row.BanWithin) * time.Microsecond, For: time.Duration(row.BanFor) * time.Microsecond,
		}
	}
	var err error
	if r.Mode, err = ParseMode(row.Mode); err != nil {
		return Rule{Name: name, Err: err}
	}
	if r.Action, err = ParseAction(row.Action); err != nil {
		return Rule{Name: name, Err: err}
	}
	for _, text := range row.Networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return Rule{Name: name, Err: &ratelimit.FieldError{Field: "networks", Value: text, Want: "networks such as 192.0.2.0/24"}}
		}
		r.Networks = append(r.Networks, network)
	}
	for i := range row.Limits {
		limit, err := row.Limits[i].limit()
		if err != nil {
			return Rule{Name: name, Err: fmt.Errorf("limit %s: %w", row.Limits[i].Name, err)}
		}
		r.Limits = append(r.Limits, limit)
	}
	return r
}

// calendarNames are the units of rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"", "day", "week", "month", "year"}

// limit turns a row into a limit.
func (l *limitJSON) limit() (RuleLimit, error) {
	limit := RuleLimit{Name: l.Name, Unlimited: l.Events == nil, Overage: l.Overage}
	algorithm, err := ratelimit.ParseAlgorithm(l.Algorithm)
	if err != nil {
		return limit, err
	}
	calendar, err := parseName(calendarNames, "calendar", l.Calendar)
	if err != nil {
		return limit, err
	}
	limit.Limit = ratelimit.Limit{
		Algorithm: algorithm, Window: time.Duration(l.Per) * time.Microsecond, Burst: l.Burst,
		Calendar: ratelimit.Calendar(calendar), Zone: l.Zone, Durable: l.Durable,
	}
	if l.Events != nil {
		limit.Limit.Events = *l.Events
	}
	return limit, nil
}

// override turns a row into an override.
func (o *overrideJSON) override() Override {
	override := Override{
		Rule: o.Rule, Limit: o.Limit, Tier: o.Tier, User: o.User, KeyID: o.Key, Unlimited: o.Events == nil, Burst: o.Burst,
		From: timeOf(o.From), Until: timeOf(o.Until),
	}
	if o.Events != nil {
		override.Events = *o.Events
	}
	return override
}

var errColumns = errors.New("the server's answer does not have the statement's columns")

// runOne runs a statement that returns rows of width texts. It returns the texts of all rows.
// NULL is "".
func runOne(ctx context.Context, db postgres.DB, statement *postgres.Statement, width int) ([]string, error) {
	if err := db.Run(ctx, []*postgres.Statement{statement}); err != nil {
		return nil, unavailable(err)
	}
	if statement.Err != nil {
		return nil, statement.Err
	}
	return texts(statement, width)
}

// texts are the columns of all rows of a result.
func texts(statement *postgres.Statement, width int) ([]string, error) {
	columns, err := results.Columns(statement.Result)
	if err != nil || len(columns) != statement.Rows*width {
		return nil, errColumns
	}
	all := make([]string, 0, len(columns))
	for _, column := range columns {
		all = append(all, string(column))
	}
	return all, nil
}

// unavailable is an error of a connection that failed, or that did not answer in time.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, cause) }
