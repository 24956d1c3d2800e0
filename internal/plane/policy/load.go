package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
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

// loadSQL are the fields of a row in memory, as the arguments of json_build_object: those of the columns of a table, with
// an alias. An object in the object, such as Limit, is NULL if all of its columns are.
func loadSQL(t *columns.Table, alias string) string {
	var fields, inner []string
	var names, within string // the columns of inner, and the name of its object
	end := func() {
		if within != "" {
			fields = append(fields, "'"+within+"', CASE WHEN num_nonnulls("+names+") > 0 THEN json_build_object("+strings.Join(inner, ", ")+") END")
		}
		inner = nil
		names = ""
		within = ""
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Load == "" {
			continue
		}
		column := alias + "." + c.Name
		if c.Kind == columns.Range {
			fields = append(fields, "'From', "+timeSQL("lower("+column+")"), "'Until', "+endSQL("upper("+column+")"))
			continue
		}
		if c.Kind == columns.Amount {
			fields = append(fields, "'Unlimited', "+column+" IS NULL")
		}
		dot := strings.IndexByte(c.Load, '.')
		if dot < 0 {
			fields = append(fields, "'"+c.Load+"', "+valueSQL(c, column))
			continue
		}
		if c.Load[:dot] != within {
			end()
			within = c.Load[:dot]
		} else {
			names += ", "
		}
		names += column
		inner = append(inner, "'"+c.Load[dot+1:]+"', "+valueSQL(c, column))
	}
	end()
	return strings.Join(fields, ", ")
}

// valueSQL is the value of a column in memory. A choice is its number. One that only a later version knows is 255, which
// Compile refuses.
func valueSQL(c *columns.Column, column string) string {
	switch {
	case c.LoadIs != "":
		return column + " = '" + c.LoadIs + "'"
	case c.Choices != nil:
		return "CASE WHEN " + column + " IS NOT NULL THEN coalesce(array_position('{" + strings.Join(c.Choices, ",") + "}', " + column + ") + " + strconv.Itoa(c.First-1) + ", 255) END"
	case c.Kind == columns.Duration:
		return durationSQL(column)
	}
	return column
}

// rulesSQL returns the rules that can have an effect, each with its limits, and the overrides
// for tiers.
var rulesSQL = `SELECT * FROM (SELECT 'rule' AS part, r.name, json_build_object('Counter', r.counter, ` + loadSQL(&columns.Tables[columns.Rules], "r") + `, 'Limits', ` + LimitsSQL + `)::text
FROM rate_limit_rules r WHERE r.mode <> 'off' AND (upper_inf(r.valid) OR upper(r.valid) > now()) AND (lower_inf(r.valid) OR lower(r.valid) < '9999-12-31 00:00+00')
UNION ALL
SELECT 'override', o.rule, ` + OverrideSQL + `::text FROM rate_limit_overrides o WHERE o.tier IS NOT NULL AND ` + overrideDueSQL + `) AS a ORDER BY 1, 2, 3`

// LimitsSQL is the JSON text of a []RuleLimit: the limits of a row r of rate_limit_rules.
var LimitsSQL = `(SELECT json_agg(json_build_object(` + loadSQL(&columns.Tables[columns.Limits], "l") + `) ORDER BY l.name) FROM rate_limit_rule_limits l WHERE l.rule = r.name)`

// OverrideSQL is the JSON of an Override: of a row o of rate_limit_overrides. overrideDueSQL says whether it can have an effect.
var OverrideSQL = `json_build_object(` + loadSQL(&columns.Tables[columns.Overrides], "o") + `)`

const overrideDueSQL = `(upper_inf(o.valid) OR upper(o.valid) > now()) AND (lower_inf(o.valid) OR lower(o.valid) < '9999-12-31 00:00+00')`

// banSQL is a Ban.
var banSQL = `json_build_object('Network', b.network, 'User', b.user_id, 'KeyID', b.key_id, 'Until', ` + endSQL("b.until") + `, 'Reason', b.reason)`

// bansSQL returns the bans of networks. Bans of users and keys come with their identities.
var bansSQL = `SELECT b.network::text, ` + banSQL + `::text FROM rate_limit_bans b WHERE b.network IS NOT NULL AND b.until > now() ORDER BY 1`

// readRules reads the rules and the overrides for tiers, for DecodeRules.
func readRules(ctx context.Context, db pgdb.DB) ([]string, error) {
	rows, err := runOne(ctx, db, &pgdb.Statement{SQL: rulesSQL}, 3)
	if err != nil {
		return nil, fmt.Errorf("reading the rules: %w", err)
	}
	return rows, nil
}

// readBans reads the bans of networks, for decodeBans.
func readBans(ctx context.Context, db pgdb.DB) ([]string, error) {
	rows, err := runOne(ctx, db, &pgdb.Statement{SQL: bansSQL}, 2)
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
func runOne(ctx context.Context, db pgdb.DB, statement *pgdb.Statement, width int) ([]string, error) {
	if err := db.Run(ctx, []*pgdb.Statement{statement}); err != nil {
		return nil, unavailable(err)
	}
	if statement.Err != nil {
		return nil, statement.Err
	}
	return texts(statement, width)
}

// texts are the columns of all rows of a result.
func texts(statement *pgdb.Statement, width int) ([]string, error) {
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
