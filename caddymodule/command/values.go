package command

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A flag that the table does not have is a mistake of the table, which the tests of the examples find.

func (c *call) text(flag string) string { return c.cmd.Flags().Lookup(flag).Value.String() }

func (c *call) is(flag string) bool { return c.text(flag) == "true" }

func (c *call) texts(flag string) []string {
	return c.cmd.Flags().Lookup(flag).Value.(pflag.SliceValue).GetSlice()
}

func (c *call) number(flag string) int {
	value, err := c.cmd.Flags().GetInt(flag)
	must(err)
	return value
}

// get is the value of a flag or an argument that has a reader; the zero value if it is not given.
func get[T any](c *call, name string) T {
	value, _ := c.values[name].(T)
	return value
}

// read reads the flags and the arguments of an entry.
func (c *call) read(e *entry) (err error) {
	c.values = map[string]any{}
	for i := range e.flags {
		f := &e.flags[i]
		name, _, _ := strings.Cut(f.name, ",")
		if err := f.check(c.text(name)); err != nil {
			return err
		}
		if text, isText := f.value.(string); f.read != nil && (c.cmd.Flags().Changed(name) || isText && text != "") {
			if c.values[name], err = f.read(c, "--"+name, c.text(name)); err != nil {
				return err
			}
		}
	}
	for i, read := range e.args {
		name := argumentNames(e.use)[i]
		if c.values[name], err = read(c, name, c.args[i]); err != nil {
			return err
		}
	}
	if c.cmd.Flags().Lookup("until") != nil && c.values["since"] != nil {
		c.times, err = by(c, admin.ParsePeriod, c.text("since"), c.text("until"))
	}
	return err
}

// check checks a flag that has choices, and the number of lines of a list.
func (f *flag) check(text string) error {
	if n, err := strconv.Atoi(text); f.name == most(0).name && (err != nil || n < 1 || n > 100000) {
		return &ratelimit.FieldError{Field: "-n", Value: text, Want: "from 1 to 100000"}
	}
	if f.choices == nil || text == f.value {
		return nil
	}
	given, want := []string{text}, strings.Join(f.choices, " or ")
	if f.list {
		given, want = strings.Split(text, ","), "one of "+strings.Join(f.choices, ", ")
	}
	for _, item := range given {
		if !slices.Contains(f.choices, item) {
			return &ratelimit.FieldError{Field: "--" + f.name, Value: item, Want: want}
		}
	}
	return nil
}

// most is the flag of a list that says how many lines it has.
func most(lines int) flag { return flag{name: "number,n", value: lines, usage: "how many"} }

// aKey is the flag of an API key by its number.
func aKey(usage string) flag {
	return flag{name: "key-id", value: 0, read: numberOf("keys list"), usage: usage}
}

// banFlags say how long a ban lasts, and why.
var banFlags = []flag{
	{name: "for", value: "", read: lasting, usage: "how long, such as 1h or 7d (default: for ever)"},
	{name: "until", value: "", read: anEnd, usage: "until when, such as 2026-12-31 or 2026-12-31T18:00:00Z"},
	{name: "reason", value: "", usage: "for people; clients do not see it"},
}

// period are the flags of a period of the history.
func period(since, what string) []flag {
	return []flag{
		{name: "since", value: since, read: anAge, usage: what + " since then: 30m, 24h or 7d before now, or a time such as 2026-11-27T18:00:00Z"},
		{name: "until", value: "", read: anAge, usage: what + " before then, in the same forms (default now)"},
	}
}

// errNoSince is for --until alone, with a command that works without --since.
var errNoSince = &ratelimit.FieldError{Field: "--since", Want: "given with --until"}

// by reads a text by the clock of the server.
func by[T any](c *call, parse func(name, text string, now time.Time) (T, error), name, text string) (value T, err error) {
	now, err := c.db.Now(c.ctx)
	if err == nil {
		value, err = parse(name, text, now)
	}
	return value, err
}

// A reader reads the text of a flag or of an argument.
type reader func(c *call, name, text string) (any, error)

// numberOf reads the number of a key or of a change. An argument in place of that of a key may be a key.
func numberOf(list string) reader {
	return func(_ *call, name, text string) (any, error) {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 1 {
			return nil, &ratelimit.FieldError{Field: name, Value: text, Want: "the number of a " + strings.TrimSuffix(strings.Fields(list)[0], "s") + ", as in: caddy pg-ratelimit " + list}
		}
		return id, nil
	}
}

func aText(_ *call, _, text string) (any, error) { return text, nil }

func anAddress(_ *call, name, text string) (any, error) { return admin.ParseAddress(name, text) }

func aNetwork(_ *call, name, text string) (any, error) { return admin.ParseNetwork(name, text) }

func aTime(_ *call, name, text string) (any, error) { return admin.ParseTime(name, text) }

// anAge is a time such as 7d ago, or 2026-11-27.
func anAge(c *call, name, text string) (any, error) {
	return by(c, admin.ParseAgo, name, text)
}

// anEnd is when something ends, such as 90d or 2026-12-31. A duration begins now. "" is never, the zero time.
func anEnd(c *call, name, text string) (any, error) {
	if text == "" {
		return nil, nil
	}
	return by(c, admin.ParseUntil, name, text)
}

// aDuration is a duration, such as 24h or 90d.
func aDuration(_ *call, name, text string) (any, error) {
	d, err := ratelimit.ParseWindow(text)
	if err != nil {
		return nil, &ratelimit.FieldError{Field: name, Value: text, Want: "a duration such as 30m, 24h or 7d"}
	}
	return d, nil
}

// lasting is a duration above 0.
func lasting(c *call, name, text string) (any, error) {
	d, err := aDuration(c, name, text)
	if err == nil && d == time.Duration(0) {
		err = &ratelimit.FieldError{Field: name, Value: text, Want: "above 0"}
	}
	return d, err
}

// aSecret is a text that may be a secret. "-" reads it from standard input, so that it
// is in no list of processes and in no history of a shell.
func aSecret(c *call, name, text string) (any, error) {
	if text != "-" {
		return text, nil
	}
	const most = 64 << 10
	read, err := io.ReadAll(io.LimitReader(c.cmd.InOrStdin(), most))
	if err != nil {
		return nil, fmt.Errorf("%s: reading standard input: %w", name, err)
	}
	line := strings.TrimRight(string(read), "\r\n")
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return nil, fmt.Errorf("%s: standard input must have it on one line", name)
	}
	return line, nil
}
