package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Every column that the statements of this package return is a text. A value with many fields is
// one JSON text with the names of the fields, which the standard library decodes: an interpreter
// would take long to decode it field by field. NULL is the zero value. What the database writes in
// another way than Go is put into Go's form by these functions.

// timeSQL is a time.Time. What is out of its range, such as infinity, is none. endSQL is an end; what
// ended before 1970, such as -infinity, ended then.
func timeSQL(expression string) string {
	return "CASE WHEN " + expression + " BETWEEN '0001-01-02 00:00+00' AND '9999-12-31 00:00+00' THEN to_char(" + expression + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END`
}

func endSQL(expression string) string {
	return "CASE WHEN " + expression + " < '1970-01-01 00:00+00' THEN '1970-01-01T00:00:00Z' ELSE " + timeSQL(expression) + " END"
}

// durationSQL is a time.Duration. Constraints bound it.
func durationSQL(expression string) string {
	return "(extract(epoch FROM " + expression + ") * 1000000000)::bigint"
}

// ordinalSQL is the index of a name in a list. A name that only a later version knows is 255, which
// Compile refuses.
func ordinalSQL(expression string, names []string) string {
	return "coalesce(array_position('{" + strings.Join(names, ",") + "}', " + expression + ") - 1, 255)"
}

// rulesSQL returns the rules that can have an effect, each with its limits, and the overrides
// for tiers. Tables of an older version may lack without_header, counter and settle.
var rulesSQL = `SELECT * FROM (SELECT 'rule' AS part, r.name, json_build_object('Family', r.family, 'Priority', r.priority,
	'Mode', ` + ordinalSQL("r.mode", modes) + `, 'Action', ` + ordinalSQL("r.action", actions) + `, 'Hosts', r.hosts, 'Paths', r.paths, 'Methods', r.methods,
	'Networks', r.networks, 'Tiers', r.tiers, 'CountBy', r.count_by, 'SkipWithoutHeader', to_jsonb(r)->>'without_header' = 'skip', 'Counter', to_jsonb(r)->>'counter',
	'From', ` + timeSQL("lower(r.valid)") + `, 'Until', ` + endSQL("upper(r.valid)") + `, 'Cost', r.cost, 'Settle', to_jsonb(r)->>'settle', 'Status', r.status, 'Message', r.message,
	'RetryAfter', ` + durationSQL("r.retry_after") + `, 'Ban', CASE WHEN r.ban_for IS NOT NULL THEN json_build_object(
		'Refusals', r.ban_after, 'Within', ` + durationSQL("r.ban_within") + `, 'For', ` + durationSQL("r.ban_for") + `) END,
	'Limits', ` + LimitsSQL + `)::text
FROM rate_limit_rules r WHERE r.mode <> 'off' AND (upper_inf(r.valid) OR upper(r.valid) > now()) AND (lower_inf(r.valid) OR lower(r.valid) < '9999-12-31 00:00+00')
UNION ALL
SELECT 'override', o.rule, ` + overrideSQL + `::text FROM rate_limit_overrides o WHERE o.tier IS NOT NULL AND ` + overrideDueSQL + `) AS a ORDER BY 1, 2, 3`

// LimitsSQL is the JSON text of a []RuleLimit: the limits of a row r of rate_limit_rules.
var LimitsSQL = `(SELECT json_agg(json_build_object('Name', l.name, 'Unlimited', l.events IS NULL, 'Overage', l.on_exceed = 'overage',
	'Limit', json_build_object('Algorithm', ` + ordinalSQL("l.algorithm", algorithmNames()) + `, 'Events', l.events, 'Window', ` + durationSQL("l.per") + `,
		'Calendar', ` + ordinalSQL("coalesce(l.calendar, 'none')", calendarNames) + `, 'Zone', l.time_zone, 'Burst', l.burst, 'Durable', l.durable)) ORDER BY l.name)
	FROM rate_limit_rule_limits l WHERE l.rule = r.name)`

// calendarNames are the units of rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"none", "day", "week", "month", "year"}

// algorithmNames are the names, by ratelimit.Algorithm.
func algorithmNames() []string {
	var names []string
	for _, a := range ratelimit.Algorithms() {
		names = append(names, a.String())
	}
	return names
}

// overrideSQL is an Override. overrideDueSQL says whether an override can have an effect.
var overrideSQL = `json_build_object('Rule', o.rule, 'Limit', o.limit_name, 'Tier', o.tier, 'User', o.user_id, 'KeyID', o.key_id, 'Events', o.events,
	'Unlimited', o.events IS NULL, 'Burst', o.burst, 'From', ` + timeSQL("lower(o.valid)") + `, 'Until', ` + endSQL("upper(o.valid)") + `)`

const overrideDueSQL = `(upper_inf(o.valid) OR upper(o.valid) > now()) AND (lower_inf(o.valid) OR lower(o.valid) < '9999-12-31 00:00+00')`

// banSQL is a Ban.
var banSQL = `json_build_object('Network', b.network, 'User', b.user_id, 'KeyID', b.key_id, 'Until', ` + endSQL("b.until") + `, 'Reason', b.reason)`

// bansSQL returns the bans of networks. Bans of users and keys come with their identities.
var bansSQL = `SELECT b.network::text, ` + banSQL + `::text FROM rate_limit_bans b WHERE b.network IS NOT NULL AND b.until > now() ORDER BY 1`

// readRules reads the rules and the overrides for tiers, for DecodeRules.
func readRules(ctx context.Context, db postgres.DB) ([]string, error) {
	rows, err := runOne(ctx, db, &postgres.Statement{SQL: rulesSQL}, 3)
	if err != nil {
		return nil, fmt.Errorf("reading the rules: %w", err)
	}
	return rows, nil
}

// readBans reads the bans of networks, for decodeBans.
func readBans(ctx context.Context, db postgres.DB) ([]string, error) {
	rows, err := runOne(ctx, db, &postgres.Statement{SQL: bansSQL}, 2)
	if err != nil {
		return nil, fmt.Errorf("reading the bans: %w", err)
	}
	return rows, nil
}

// DecodeRules turns the texts of all rows of RulesSQL into rules and overrides, for Compile.
func DecodeRules(rows []string) ([]Rule, []Override, error) {
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
		var o Override
		if err := json.Unmarshal([]byte(rows[i+2]), &o); err != nil {
			return nil, nil, fmt.Errorf("the overrides of the rule %q: %w", rows[i+1], err)
		}
		overrides = append(overrides, o)
	}
	return rules, overrides, nil
}

// decodeRule is a rule of rulesSQL. If it cannot be read, only Name and Err are set.
func decodeRule(name, text string) Rule {
	r := Rule{Name: name}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Rule{Name: name, Err: err}
	}
	return r
}

// decodeBans turns rows of bansSQL into bans.
func decodeBans(rows []string) ([]Ban, error) {
	if len(rows)%2 != 0 {
		return nil, errColumns
	}
	bans := make([]Ban, len(rows)/2)
	for i := range bans {
		if err := json.Unmarshal([]byte(rows[2*i+1]), &bans[i]); err != nil {
			return nil, fmt.Errorf("the ban of %s: %w", rows[2*i], err)
		}
	}
	return bans, nil
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
