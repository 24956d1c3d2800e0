package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// kind describes the form of an argument or a flag's value. The zero kind accepts any text.
type kind struct {
	// sql converts the text t to a value. If t is invalid, the result is NULL or a data exception.
	sql  string
	want string // the valid forms, for errors
}

const (
	isDuration  = `t ~ '^([0-9.]+(y|w|d|h|m|s|ms|us))+$'`
	networkOfT  = `(SELECT network(rate_limit_network(n)) FROM (SELECT t::inet) AS i(n) WHERE n = network(n))`
	wantTime    = "a time such as 2026-11-27, 2026-11-27T18:00:00Z or 2026-11-27T18:00:00+01:00"
	wantNetwork = "a network without bits behind its length, or an address, such as 192.0.2.0/24, " +
		"192.0.2.1 or 2001:db8::/32"
)

// The kinds of flags and arguments. A time is relative to the clock of the server.
var (
	// secret accepts any text. No error and no output repeats the text. See invocation.readSecret.
	secret = kind{want: "a secret"}
	keyID  = kind{"CASE WHEN t::bigint > 0 THEN t END",
		"the number of a key, as the command keys list shows"}
	// keyDigest converts the number of a key to its digest.
	keyDigest = kind{"(SELECT encode(digest, 'hex') FROM rate_limit_api_keys WHERE id = t::bigint)",
		keyID.want}

	lines    = kind{"CASE WHEN t::bigint BETWEEN 1 AND 100000 THEN t END", "from 1 to 100000"}
	month    = kind{"CASE WHEN length(t) = 7 THEN (t || '-01')::date END", "a month such as 2026-11"}
	duration = kind{"CASE WHEN " + isDuration + " THEN t::interval END", "a duration such as 30m, 24h or 7d"}
	moment   = kind{"t::timestamptz", wantTime}
	pastTime = kind{"CASE WHEN " + isDuration + " THEN now() - t::interval ELSE t::timestamptz END",
		"a duration before now such as 30m, 24h or 7d, or " + wantTime}
	futureTime = kind{`(SELECT e FROM (SELECT CASE WHEN t = 'never' THEN 'infinity' WHEN ` + isDuration +
		` THEN now() + t::interval ELSE t::timestamptz END) AS a(e) WHERE e > now())`,
		"in the future: a duration such as 24h or 90d, " + wantTime + ", or never"}
	address = kind{"CASE WHEN t NOT LIKE '%/%' THEN host(rate_limit_network(t::inet)) END",
		"an address such as 192.0.2.1 or 2001:db8::1"}
	network = kind{networkOfT, wantNetwork}
)

// argumentKinds maps the name of an argument to its kind. Other arguments are plain text.
var argumentKinds = map[string]kind{"ID": keyID, "KEY": secret, "NETWORK": network}

// typeKinds maps a Postgres type to its kind.
var typeKinds = map[string]kind{
	"bigint":   {"t::bigint", "a whole number"},
	"integer":  {"t::integer", "a whole number"},
	"numeric":  {"t::numeric", "a number"},
	"bigint[]": arrayOf("t::bigint", "whole numbers with commas between them"),
	"boolean":  {"t::boolean", "true or false"},
	"date":     {"t::date", "a day such as 2026-11-27"},
	"interval": duration,
	"tstzrange": {"('[' || replace(t, '..', ',') || ')')::tstzrange", "FROM..UNTIL, where either may be " +
		"missing, a time is such as 2026-11-27 or 2026-11-27T18:00:00Z, and the end is after the start"},
	"timestamp with time zone": futureTime,
	"text[]":                   arrayOf("CASE WHEN t <> '' THEN t END", "values with commas between them"),
	"cidr[]":                   arrayOf(networkOfT, wantNetwork),
}

// arrayOf returns the kind of a list with commas between its elements. sql converts an element.
func arrayOf(sql, want string) kind {
	return kind{"(SELECT array_agg(e ORDER BY place) FROM (SELECT place, " + sql + ` AS e
	FROM (SELECT btrim(u) AS t, place
		FROM unnest(string_to_array(t, ',')) WITH ORDINALITY AS u(u, place)) AS l) AS e
	HAVING count(e) = count(*))`, want}
}

// oneOf returns the kind that accepts only texts.
func oneOf(texts ...string) kind {
	return kind{"CASE WHEN t IN ('" + strings.Join(texts, "', '") + "') THEN t END",
		strings.Join(texts, " or ")}
}

// input is an argument or a flag's value. In errors, its name is field.
type input struct {
	field, text string
	kind        kind
}

// parse converts inputs to values that the server accepts, in one round trip. An error names the field of the
// invalid input.
func (c *invocation) parse(inputs []input) (values []string, err error) {
	batch := &pgx.Batch{}
	for _, in := range inputs {
		batch.Queue("SELECT ("+cmp.Or(in.kind.sql, "t")+")::text FROM (SELECT $1::text) AS i(t)", in.text)
	}
	results := c.conn.SendBatch(c.ctx, batch)
	defer func() { _ = results.Close() }() // repeats the error of a result, which the loop returns
	for _, in := range inputs {
		var value *string
		err := results.QueryRow().Scan(&value)
		var pgErr *pgconn.PgError
		switch {
		case value != nil:
			values = append(values, *value)
		case err != nil && !(errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, dataException)):
			return nil, err
		case in.kind.want == keyID.want: // the text may be a key
			return nil, errors.New(in.field + ": must be " + keyID.want)
		default:
			return nil, invalid(in.field, in.text, cmp.Or(in.kind.want, "a text that the database can store"))
		}
	}
	return values, nil
}

// dataException is the SQLSTATE class of invalid data.
const dataException = "22"

// flag returns the text of a flag, or its default. If the command does not declare the flag, flag panics.
func (c *invocation) flag(name string) string { return c.cmd.Flags().Lookup(name).Value.String() }

func (c *invocation) boolFlag(name string) bool { return c.flag(name) == "true" }

func (c *invocation) flagList(name string) []string {
	return c.cmd.Flags().Lookup(name).Value.(pflag.SliceValue).GetSlice()
}

// value returns the parsed value of a flag or an argument, or "" if it is not given.
func (c *invocation) value(name string) string {
	value, _ := c.values[name].(string)
	return value
}

// moment returns a flag's time, or the zero time if the flag is not given or is "never".
func (c *invocation) moment(name string) time.Time {
	t, _ := time.Parse("2006-01-02 15:04:05.999999-07", c.value(name))
	return t.UTC()
}

// readInputs parses flags and arguments into values.
func (c *invocation) readInputs() (err error) {
	var names []string
	var inputs []input
	add := func(name, field, text string, kind kind) {
		if kind == secret && err == nil {
			text, err = c.readSecret(field, text)
		}
		names, inputs = append(names, name), append(inputs, input{field, text, kind})
	}
	for _, f := range c.flags {
		long, _, _ := strings.Cut(f.name, ",")
		if text := c.flag(long); text != "" {
			add(strings.ReplaceAll(long, "-", "_"), "--"+long, text, f.kind)
		}
	}
	for i, name := range argumentNames(c.use) {
		if i < len(c.args) {
			add(strings.Trim(name, "…"), name, c.args[i], argumentKinds[name])
		}
	}
	if err != nil {
		return err
	}
	values, err := c.parse(inputs)
	if err != nil {
		return err
	}
	c.values = pgx.NamedArgs{}
	for i, name := range names {
		c.values[name] = values[i]
	}
	return c.checkPeriod()
}

// checkPeriod returns an error if --until is set without --since or --from, or is not after it.
func (c *invocation) checkPeriod() error {
	until := c.cmd.Flags().Lookup("until")
	for _, name := range []string{"since", "from"} {
		start := c.cmd.Flags().Lookup(name)
		if start == nil || until == nil {
			continue
		}
		text, end := start.Value.String(), c.moment("until")
		switch {
		case text == "" && until.Changed:
			return invalid("--"+name, "", "given with --until")
		case text != "" && !end.IsZero() && !c.moment(name).Before(end):
			return invalid("--"+name, text, "before the end, "+displayTime(end))
		}
	}
	return nil
}

// toggle returns a flag that is on or off.
func toggle(name, usage string) flag { return flag{name: name, value: false, usage: usage} }

// repeated returns a flag that can be given several times.
func repeated(name, usage string) flag { return flag{name: name, value: []string(nil), usage: usage} }

// linesFlag returns the flag -n, which bounds the lines of a list, with its default.
func linesFlag(lineCount string) flag {
	return flag{name: "number,n", value: lineCount, usage: "the maximum number of lines", kind: lines}
}

// keyIDFlag returns the flag --key-id, which selects an API key by its number.
func keyIDFlag(usage string) flag { return flag{name: "key-id", kind: keyID, usage: usage} }

// banFlags set the end of a ban and its reason.
var banFlags = []flag{
	{name: "for", kind: duration, usage: "how long, such as 1h or 7d (default: forever)"},
	{name: "until", kind: futureTime, usage: "until when, such as 2026-12-31 or 2026-12-31T18:00:00Z"},
	{name: "reason", usage: "for people; clients do not see it"},
}

// periodFlags returns the flags --since and --until, which bound a period of the history. since is the
// default of --since. In the help, subject names what the period selects, such as "requests".
func periodFlags(since, subject string) []flag {
	return []flag{
		{
			name:  "since",
			value: since,
			kind:  pastTime,
			usage: subject + " since then: 30m, 24h or 7d before now, or a time such as 2026-11-27T18:00:00Z",
		},
		{name: "until", value: "now", kind: pastTime, usage: subject + " before then, in the same forms"},
	}
}

// invalid returns the error for a field with an invalid value, or for a missing field if value is "". want
// describes the valid values.
func invalid(field, value, want string) error {
	return &ratelimit.FieldError{Field: field, Value: value, Want: want}
}

// displayTime formats a time for people.
func displayTime(t time.Time) string { return t.Format(time.DateTime) + "Z" }

// readSecret returns an argument that may be a secret. If text is "-", readSecret reads the secret from
// standard input, which keeps it out of the process list and the shell's history. If the database cannot
// store the secret as text, readSecret returns its digest, which also is the key of its counters.
func (c *invocation) readSecret(name, text string) (string, error) {
	if text == "-" {
		const maxBytes = 64 << 10
		input, err := io.ReadAll(io.LimitReader(c.cmd.InOrStdin(), maxBytes))
		if err != nil {
			return "", fmt.Errorf("%s: reading standard input: %w", name, err)
		}
		text = strings.TrimRight(string(input), "\r\n")
		if text == "" || strings.ContainsAny(text, "\r\n") {
			return "", fmt.Errorf("%s: standard input must be one line, the secret", name)
		}
	}
	if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		text = ratelimit.DigestKey(text)
	}
	return text, nil
}
