package command

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The settings of a row are arguments of the SQL function that changes the row. Postgres's catalog supplies
// the names and types of the arguments. The setting limit.NAME of a rule is an element of the argument
// limits. The settings RULE/LIMIT and RULE/LIMIT.burst of a user or a key are elements of the argument
// overrides.

const argumentsSQL = `SELECT a.name, format_type(a.type, NULL) FROM pg_proc p
	CROSS JOIN LATERAL unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY AS a(name, type, place)
WHERE p.oid = $1::text::regproc ORDER BY a.place`

// assignment is a parsed name=value. An empty value resets the setting to its default.
type assignment struct{ name, value string }

// assignments parses texts of the form name=value. A name is valid if validNames contains it, or if isValid
// returns true for it. Each name may occur once.
func assignments(texts, validNames []string, isValid func(name string) bool) (
	parsed []assignment, err error,
) {
	names := strings.Join(validNames, ", ")
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("%q: must be name=value, where the name is one of %s", text, names)
		case !isValid(name) && !slices.Contains(validNames, name):
			return nil, fmt.Errorf("%s: unknown: must be one of %s", name, names)
		case slices.ContainsFunc(parsed, func(a assignment) bool { return a.name == name }):
			return nil, fmt.Errorf("%s: must be given once; commas separate the elements of a list, as in "+
				"paths=/a/*,/b", name)
		}
		parsed = append(parsed, assignment{name, value})
	}
	return parsed, nil
}

// isLimit reports whether name has the form limit.NAME. An override of a rule limit.NAME has another form.
func isLimit(name string) bool {
	return strings.HasPrefix(name, "limit.") && len(name) > len("limit.") && !isOverride(name)
}

// isOverride reports whether name has the form RULE/LIMIT or RULE/LIMIT.burst.
func isOverride(name string) bool { return strings.Contains(name, "/") }

// setter returns the field runGo of a command that changes settings with an SQL function.
func setter(function string) func(c *invocation) error {
	return func(c *invocation) error {
		result := ""
		err := c.inTransaction(func() (err error) {
			force := c.cmd.Flags().Lookup("force")
			result, err = c.set(
				function,
				c.args[0],
				c.args[1:],
				force == nil || force.Value.String() == "true",
			)
			return err
		})
		if err != nil {
			return err
		}
		return c.printConfirmation(result)
	}
}

// resetOnly maps a function to a column that its argument reset accepts, and that is no argument itself.
var resetOnly = map[string][]string{"rate_limit_key": {"revoked_at"}}

// set applies assignments to the row id with an SQL function, and returns "created" or "changed". An empty
// value resets a setting to its default, or deletes a limit or an override. Because an amount of 0 refuses
// every request, set accepts it for a limit of a rule only if force is true. A function with the argument
// force gets it.
func (c *invocation) set(function, id string, texts []string, force bool) (result string, err error) {
	rows, _ := c.conn.Query(c.ctx, argumentsSQL, function) // CollectRows returns the error
	arguments, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Type string }])
	if err != nil {
		return "", err
	}
	var names, reset, elements []string
	types, listName, isElement := map[string]string{}, "", func(string) bool { return false }
	for _, a := range arguments[1:] {
		switch types[a.Name] = a.Type; a.Name {
		case "reset", "force":
		case "limits":
			listName, isElement, names = a.Name, isLimit, append(names, "limit.NAME")
		case "overrides":
			listName, isElement, names = a.Name, isOverride, append(names, "RULE/LIMIT", "RULE/LIMIT.burst")
		default:
			names = append(names, a.Name)
		}
	}
	changes, err := assignments(texts, append(names, resetOnly[function]...), isElement)
	if err != nil {
		return "", err
	}
	var inputs []input
	for _, a := range changes {
		window, isAmount := amountWindows[a.name]
		// The number of an amount, such as 100 of 100/1h; "" without one.
		number := append(strings.Fields(strings.ReplaceAll(a.value, "/", " ")), "")[0]
		kind := typeKinds[types[a.name]]
		if isAmount {
			kind.want += ", or unlimited"
		}
		switch {
		case (isAmount || isLimit(a.name)) && strings.Trim(number, "0.") == "" && number != "" && !force:
			return "", invalid(a.name, a.value,
				"above 0, or given with --force: it would refuse every request, as action=block does")
		case isLimit(a.name):
			elements = append(elements, a.name[len("limit."):]+"="+a.value)
		case isOverride(a.name):
			elements = append(elements, a.name+"="+a.value)
		case a.value == "":
			reset = append(reset, a.name)
		case slices.Contains(resetOnly[function], a.name):
			return "", invalid(a.name, a.value, "empty: a command can only reset it, and revoke sets it")
		case isAmount && a.value == "unlimited":
			elements = append(elements, a.name+"="+a.value+"/"+window)
		default:
			inputs = append(inputs, input{a.name, a.value, kind})
		}
	}
	parsed, err := c.parse(inputs)
	if err != nil {
		return "", err
	}
	sql, values := "SELECT "+function+"($1::"+arguments[0].Type+", reset => $2::text[]", []any{id, reset}
	for i, value := range parsed {
		values = append(values, value)
		name := inputs[i].field
		sql += fmt.Sprintf(", %s => $%d::%s", pgx.Identifier{name}.Sanitize(), len(values), types[name])
	}
	if elements != nil {
		values = append(values, elements)
		sql += fmt.Sprintf(", %s => $%d::text[]", listName, len(values))
	}
	if types["force"] != "" {
		sql += ", force => " + strconv.FormatBool(force)
	}
	err = c.conn.QueryRow(c.ctx, sql+")", values...).Scan(&result)
	return result, err
}

// amountWindows maps the name of an amount to its window.
var amountWindows = map[string]string{
	"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "1d",
	"per_month": "1mo calendar", "in_flight": "in_flight",
}
