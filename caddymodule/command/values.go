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

// A flag that the table does not have is a mistake of the table, which the tests of the examples find.

func (c *call) text(flag string) string { return c.cmd.Flags().Lookup(flag).Value.String() }

func (c *call) is(flag string) bool { return c.text(flag) == "true" }

func (c *call) texts(flag string) []string {
	return c.cmd.Flags().Lookup(flag).Value.(pflag.SliceValue).GetSlice()
}

// get is the value of a flag or an argument; the zero value if it is not given.
func get[T any](c *call, name string) T {
	value, _ := c.values[name].(T)
	return value
}

// moment is the value of a flag that is a time; the zero time if it is not given, or never.
func (c *call) moment(name string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, get[string](c, name))
	return t
}

// read reads the flags and the arguments.
func (c *call) read() (err error) {
	c.values = pgx.NamedArgs{}
	for i := range c.flags {
		f := &c.flags[i]
		long, _, _ := strings.Cut(f.name, ",")
		name, text := strings.ReplaceAll(long, "-", "_"), c.text(long)
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
			if i < len(c.entry.args) {
				kind = c.entry.args[i]
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
			c.values["until"] = stamp(until)
		}
		if !since.Before(until) {
			return must("--since", c.text("since"), "before the end, "+shownTime(until))
		}
	}
	return nil
}

// check checks a flag that has choices, and the number of lines of a list.
func (f *flag) check(text string) error {
	if n, err := strconv.Atoi(text); f.name == most(0).name && (err != nil || n < 1 || n > 100000) {
		return must("-n", text, "from 1 to 100000")
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
			return must("--"+f.name, item, want)
		}
	}
	return nil
}

// most is the flag of a list that says how many lines it has.
func most(lines int) flag { return flag{name: "number,n", value: lines, usage: "how many"} }

// aKey is the flag of an API key by its number.
func aKey(usage string) flag { return flag{name: "key-id", kind: "key", usage: usage} }

// banFlags say how long a ban lasts, and why.
var banFlags = []flag{
	{name: "for", kind: "lasting", usage: "how long, such as 1h or 7d (default: for ever)"},
	{name: "until", kind: "end", usage: "until when, such as 2026-12-31 or 2026-12-31T18:00:00Z"},
	{name: "reason", usage: "for people; clients do not see it"},
}

// period are the flags of a period of the history.
func period(since, what string) []flag {
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

// must returns the error about a field that holds a value, or "" if it is missing.
func must(field, value, want string) error {
	return &ratelimit.FieldError{Field: field, Value: value, Want: want}
}

// errNoSince is for --until alone, with a command that works without --since.
var errNoSince = must("--since", "", "given with --until")

const wantTime = "a time such as 2026-11-27, 2026-11-27T18:00:00Z or 2026-11-27T18:00:00+01:00"

// value reads a text as a kind of value, or as a type of SQL, in the form in which the server reads it: a
// string, of an array a []string. Lists have commas. A duration in place of a time ends or begins now. The
// error is about the field.
func (c *call) value(kind, field, text string) (any, error) {
	want := func(what string) error { return must(field, text, what) }
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
			return nil, want("a whole number" + map[bool]string{true: ", or unlimited"}[kind == "amount"])
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
			return nil, want(
				map[bool]string{true: "a duration such as 30s, 5m, 1h or 1d",
					false: "a duration such as 30m, 24h or 7d"}[kind == "interval"],
			)
		}
		if kind == "lasting" && lasts == 0 {
			return nil, want("above 0")
		}
		return strconv.FormatInt(lasts.Microseconds(), 10) + " microseconds", nil // days vary
	case "time":
		if !isTime {
			return nil, want(wantTime)
		}
		return stamp(at), nil
	case "ago":
		if age, err := settings.ParseAge(text); err == nil {
			return stamp(c.now.Add(-age)), nil
		}
		if !isTime {
			return nil, want("a duration before now such as 30m, 24h or 7d, or " + wantTime)
		}
		return stamp(at), nil
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
		return stamp(at), nil
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

// readNetwork reads a network, or an address as the network of this one address. A network of IPv4 addresses
// in IPv6 form becomes one of IPv4.
func readNetwork(field, text string) (string, error) {
	network, err := netip.ParsePrefix(text)
	if address, alone := netip.ParseAddr(text); alone == nil && address.Zone() == "" {
		network, err = netip.PrefixFrom(address, address.BitLen()), nil
	}
	if err != nil {
		return "", must(
			field,
			text,
			"a network or an address, such as 192.0.2.0/24, 192.0.2.1 or 2001:db8::/32",
		)
	}
	if network != network.Masked() {
		return "", must(field, text, "the first address of the network: "+network.Masked().String())
	}
	if network.Addr().Is4In6() && network.Bits() >= 96 {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	return network.String(), nil
}

// stamp is a time as the server reads it.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// shownTime is a time for people.
func shownTime(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }

// readTime reads a point in time, in UTC.
func readTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04",
		time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), true // the database has no more digits
		}
	}
	return time.Time{}, false
}

// secret is a text that may be a secret. "-" reads it from standard input, so that it is in no list of
// processes and in no history of a shell. What the database cannot store is its digest, as in counters.
func (c *call) secret(name, text string) (string, error) {
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
