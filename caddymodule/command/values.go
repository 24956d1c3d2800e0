package command

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// flag returns the text of a flag, or its default. It panics if the command does not declare the flag.
func (c *invocation) flag(flag string) string { return c.cmd.Flags().Lookup(flag).Value.String() }

func (c *invocation) boolFlag(flag string) bool { return c.flag(flag) == "true" }

func (c *invocation) flagList(flag string) []string {
	return c.cmd.Flags().Lookup(flag).Value.(pflag.SliceValue).GetSlice()
}

// get returns the parsed value of a flag or an argument, or the zero value if it is not given.
func get[T any](c *invocation, name string) T {
	value, _ := c.values[name].(T)
	return value
}

// moment returns the time of a flag, or the zero time if the flag is not given or is never.
func (c *invocation) moment(name string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, get[string](c, name))
	return t
}

// read parses flags and arguments into values.
func (c *invocation) read() (err error) {
	c.values = pgx.NamedArgs{}
	for i := range c.flags {
		f := &c.flags[i]
		long, _, _ := strings.Cut(f.name, ",")
		name, text := strings.ReplaceAll(long, "-", "_"), c.flag(long)
		if err := f.check(text); err != nil {
			return err
		}
		if _, isText := f.value.(string); text != "" &&
			(isText || c.cmd.Flags().Changed(long) || f.value != nil && f.kind == "") {
			if c.values[name], err = c.value(f.kind, "--"+long, text); err != nil {
				return err
			}
		}
	}
	for i, name := range argumentNames(c.use) {
		if i < len(c.args) {
			kind := ""
			if i < len(c.commandSpec.args) {
				kind = c.commandSpec.args[i]
			}
			if c.values[strings.Trim(name, "…")], err = c.value(kind, name, c.args[i]); err != nil {
				return err
			}
		}
	}
	since, until := c.moment("since"), c.moment("until")
	if c.cmd.Flags().Lookup("until") != nil && c.values["since"] != nil {
		if until.IsZero() {
			until = c.now
			c.values["until"] = formatTime(until)
		}
		if !since.Before(until) {
			return invalid("--since", c.flag("since"), "before the end, "+displayTime(until))
		}
	}
	return nil
}

// check returns an error unless text is one of the flag's choices, or for -n a number in range.
func (f *flag) check(text string) error {
	if n, err := strconv.Atoi(text); f.name == limitFlag(0).name && (err != nil || n < 1 || n > 100000) {
		return invalid("-n", text, "from 1 to 100000")
	}
	if f.choices == nil || text == f.value || text == "" {
		return nil
	}
	given, want := []string{text}, strings.Join(f.choices, " or ")
	if f.list {
		given, want = strings.Split(text, ","), "one of "+strings.Join(f.choices, ", ")
	}
	for _, item := range given {
		if !slices.Contains(f.choices, item) {
			return invalid("--"+f.name, item, want)
		}
	}
	return nil
}

// limitFlag returns the flag -n, which bounds the lines of a list.
func limitFlag(lines int) flag { return flag{name: "number,n", value: lines, usage: "how many"} }

// keyIDFlag returns the flag --key-id, which selects an API key by its number.
func keyIDFlag(usage string) flag { return flag{name: "key-id", kind: "key", usage: usage} }

// banFlags set the end of a ban and its reason.
var banFlags = []flag{
	{name: "for", kind: "lasting", usage: "how long, such as 1h or 7d (default: for ever)"},
	{name: "until", kind: "end", usage: "until when, such as 2026-12-31 or 2026-12-31T18:00:00Z"},
	{name: "reason", usage: "for people; clients do not see it"},
}

// periodFlags returns the flags --since and --until, which bound a period of the history.
func periodFlags(since, what string) []flag {
	return []flag{
		{
			name:  "since",
			value: since,
			kind:  "ago",
			usage: what + " since then: 30m, 24h or 7d before now, or a time such as 2026-11-27T18:00:00Z",
		},
		{name: "until", kind: "ago", usage: what + " before then, in the same forms (default now)"},
	}
}

// invalid returns the error for a field with a value that is not as want says, or for a missing field if
// value is "".
func invalid(field, value, want string) error {
	return &ratelimit.FieldError{Field: field, Value: value, Want: want}
}

// errNoSince refuses --until without --since.
var errNoSince = invalid("--since", "", "given with --until")

const wantTime = "a time such as 2026-11-27, 2026-11-27T18:00:00Z or 2026-11-27T18:00:00+01:00"

// value parses text as a kind of flag or as an SQL type. It returns a string in a form that the server
// accepts, or a []string for an array. Commas in text separate its elements. A duration in place of a time is
// relative to now. Errors name the field.
func (c *invocation) value(kind, field, text string) (any, error) {
	want := func(what string) error { return invalid(field, text, what) }
	if kind == "secret" {
		return c.secret(field, text)
	}
	if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		return nil, want("a text in UTF-8 without a zero byte")
	}
	at, isTime := readTime(text)
	lasts, wrong := ratelimit.ParseWindow(text)
	switch kind {
	case "bigint", "integer", "amount":
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			if kind == "amount" {
				return nil, want("a whole number, or unlimited")
			}
			return nil, want("a whole number")
		}
	case "key":
		if id, err := strconv.ParseInt(text, 10, 64); err != nil || id < 1 {
			const number = "the number of a key, as in: caddy pg-ratelimit keys list"
			if field == "ID" { // it may be a key
				return nil, errors.New("ID: must be " + number)
			}
			return nil, want(number)
		}
	case "boolean":
		if text != "true" && text != "false" {
			return nil, want("true or false")
		}
	case "date":
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			return nil, want("a day such as 2026-11-27")
		}
	case "month":
		if _, err := time.Parse("2006-01", text); err != nil {
			return nil, want("a month such as 2026-11")
		}
		return text + "-01", nil
	case "duration", "lasting", "interval":
		if wrong != nil {
			if kind == "interval" {
				return nil, want("a duration such as 30s, 5m, 1h or 1d")
			}
			return nil, want("a duration such as 30m, 24h or 7d")
		}
		if kind == "lasting" && lasts == 0 {
			return nil, want("above 0")
		}
		return strconv.FormatInt(lasts.Microseconds(), 10) + " microseconds", nil // days vary
	case "time":
		if !isTime {
			return nil, want(wantTime)
		}
		return formatTime(at), nil
	case "ago":
		if age, err := settings.ParseAge(text); err == nil {
			return formatTime(c.now.Add(-age)), nil
		}
		if !isTime {
			return nil, want("a duration before now such as 30m, 24h or 7d, or " + wantTime)
		}
		return formatTime(at), nil
	case "end", "timestamp with time zone":
		switch {
		case text == "never":
			return "infinity", nil
		case wrong == nil && lasts > 0:
			at = c.now.Add(lasts)
		case !isTime:
			return nil, want("a duration such as 24h or 90d, " + wantTime + ", or never")
		case !at.After(c.now):
			return nil, want("in the future")
		}
		return formatTime(at), nil
	case "tstzrange":
		from, until, found := strings.Cut(text, "..")
		begin, hasBegin := readTime(from)
		end, hasEnd := readTime(until)
		if !found || from != "" && !hasBegin || until != "" && !hasEnd ||
			hasBegin && hasEnd && !begin.Before(end) {
			return nil, want(
				"FROM..UNTIL, where either may be missing, a time is such as 2026-11-27 or " +
					"2026-11-27T18:00:00Z, and the end is after the begin",
			)
		}
		return "[" + from + "," + until + ")", nil
	case "address":
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, want("an address such as 192.0.2.1 or 2001:db8::1")
		}
		return address.Unmap().WithZone("").String(), nil
	case "network":
		return readNetwork(field, text)
	case "text[]", "cidr[]":
		items := strings.Split(text, ",")
		for i := range items {
			var err error
			if items[i] = strings.TrimSpace(items[i]); items[i] == "" {
				return nil, want("values with commas between them")
			}
			if kind == "cidr[]" {
				if items[i], err = readNetwork(field, items[i]); err != nil {
					return nil, err
				}
			}
		}
		return items, nil
	}
	return text, nil
}

// readNetwork parses a network, or an address as the network of that one address. It converts IPv4-mapped
// networks to IPv4.
func readNetwork(field, text string) (string, error) {
	network, err := netip.ParsePrefix(text)
	if address, alone := netip.ParseAddr(text); alone == nil && address.Zone() == "" {
		network, err = netip.PrefixFrom(address, address.BitLen()), nil
	}
	if err != nil {
		return "", invalid(
			field,
			text,
			"a network or an address, such as 192.0.2.0/24, 192.0.2.1 or 2001:db8::/32",
		)
	}
	if network != network.Masked() {
		return "", invalid(field, text, "the first address of the network: "+network.Masked().String())
	}
	if network.Addr().Is4In6() && network.Bits() >= 96 {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	return network.String(), nil
}

// formatTime formats a time for the server.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// displayTime formats a time for people.
func displayTime(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }

// readTime parses a time, in UTC unless text has an offset, and reports whether text is one.
func readTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04",
		time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), true // the precision of the database
		}
	}
	return time.Time{}, false
}

// secret returns an argument that may be a secret. "-" reads it from standard input, which keeps it out of
// the list of processes and the history of the shell. A key that the database cannot store as text is
// replaced by its digest, as in counters.
func (c *invocation) secret(name, text string) (string, error) {
	if text == "-" {
		const most = 64 << 10
		read, err := io.ReadAll(io.LimitReader(c.cmd.InOrStdin(), most))
		if err != nil {
			return "", fmt.Errorf("%s: reading standard input: %w", name, err)
		}
		text = strings.TrimRight(string(read), "\r\n")
		if text == "" || strings.ContainsAny(text, "\r\n") {
			return "", fmt.Errorf("%s: standard input must have it on one line", name)
		}
	}
	if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		text = ratelimit.DigestKey(text)
	}
	return text, nil
}
