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

// What a call reads from the flags and arguments of its command. A flag that the table does not have is a mistake of
// the table, which the tests of the examples find.

func (c *call) text(flag string) string {
	value, err := c.cmd.Flags().GetString(flag)
	must(err)
	return value
}

func (c *call) is(flag string) bool {
	value, err := c.cmd.Flags().GetBool(flag)
	must(err)
	return value
}

func (c *call) texts(flag string) []string {
	return c.cmd.Flags().Lookup(flag).Value.(pflag.SliceValue).GetSlice()
}

func (c *call) number(flag string) int {
	value, err := c.cmd.Flags().GetInt(flag)
	must(err)
	return value
}

// checkChoices checks the flags that have choices, and the number of lines of a list.
func (c *call) checkChoices(e *entry) error {
	for i := range e.flags {
		f := &e.flags[i]
		if f.name == most(0).name {
			if n := c.number("number"); n < 1 || n > 100000 {
				return &ratelimit.FieldError{Field: "-n", Value: strconv.Itoa(n), Want: "from 1 to 100000"}
			}
		}
		if f.choices == nil || c.text(f.name) == f.value {
			continue
		}
		given, want := []string{c.text(f.name)}, strings.Join(f.choices, " or ")
		if f.list {
			given, want = strings.Split(given[0], ","), "one of "+strings.Join(f.choices, ", ")
		}
		for _, item := range given {
			if !slices.Contains(f.choices, item) {
				return &ratelimit.FieldError{Field: "--" + f.name, Value: item, Want: want}
			}
		}
	}
	return nil
}

// most is the flag of a list that says how many lines it has.
func most(lines int) flag { return flag{name: "number,n", value: lines, usage: "how many"} }

// aKey is the flag of an API key by its number.
func aKey(usage string) flag {
	return flag{name: "key-id", value: 0, usage: usage, complete: validKeys}
}

// keyID is the value of aKey; 0 if it is not given.
func (c *call) keyID() (int64, error) {
	id := int64(c.number("key-id"))
	if c.cmd.Flags().Changed("key-id") && id < 1 {
		return 0, &ratelimit.FieldError{Field: "--key-id", Value: cell(id), Want: "the number of a key, as in: caddy pg-ratelimit keys list"}
	}
	return id, nil
}

// ban flags say how long a ban lasts, and why.
var banFlags = []flag{
	{name: "for", value: "", usage: "how long, such as 1h or 7d (default: for ever)"},
	{name: "until", value: "", usage: "until when, such as 2026-12-31 or 2026-12-31T18:00:00Z"},
	{name: "reason", value: "", usage: "for people; clients do not see it"},
}

// period are the flags of a period of the history.
func period(since, what string) []flag {
	return []flag{
		{name: "since", value: since, usage: what + " since then: 30m, 24h or 7d before now, or a time such as 2026-11-27T18:00:00Z"},
		{name: "until", value: "", usage: what + " before then, in the same forms (default now)"},
	}
}

// errNoSince is for --until alone, with a command that works without --since.
var errNoSince = &ratelimit.FieldError{Field: "--since", Want: "given with --until"}

// period is the period of the flags, by the clock of the server.
func (c *call) period() (admin.Period, error) {
	now, err := c.db.Now(c.ctx)
	if err != nil {
		return admin.Period{}, err
	}
	return admin.ParsePeriod(c.text("since"), c.text("until"), now)
}

// secret reads an argument that may be a secret. "-" reads it from standard input, so that it
// is in no list of processes and in no history of a shell.
func (c *call) secret(name, text string) (string, error) {
	if text != "-" {
		return text, nil
	}
	const most = 64 << 10
	read, err := io.ReadAll(io.LimitReader(c.cmd.InOrStdin(), most))
	if err != nil {
		return "", fmt.Errorf("%s: reading standard input: %w", name, err)
	}
	line := strings.TrimRight(string(read), "\r\n")
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return "", fmt.Errorf("%s: standard input must have it on one line", name)
	}
	return line, nil
}

// end reads a flag that says when something ends, such as 90d or 2026-12-31. A duration begins
// now, by the clock of the server. "" is never, the zero time.
func (c *call) end(flag string) (time.Time, error) {
	text := c.text(flag)
	if text == "" {
		return time.Time{}, nil
	}
	now, err := c.db.Now(c.ctx)
	if err != nil {
		return now, err
	}
	return admin.ParseUntil("--"+flag, text, now)
}

// lasting reads the flag of how long something lasts.
func (c *call) lasting(flag string) (time.Duration, error) {
	d, err := c.duration(flag)
	if err == nil && d == 0 {
		err = &ratelimit.FieldError{Field: "--" + flag, Value: c.text(flag), Want: "above 0"}
	}
	return d, err
}

// duration reads the flag of a duration, such as 24h or 90d.
func (c *call) duration(flag string) (time.Duration, error) {
	d, err := ratelimit.ParseWindow(c.text(flag))
	if err != nil {
		return 0, &ratelimit.FieldError{Field: "--" + flag, Value: c.text(flag), Want: "a duration such as 30m, 24h or 7d"}
	}
	return d, nil
}
