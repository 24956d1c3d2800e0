package policyfile

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A value is nil, or a text; of a list a []string. Each value has one form, so that equal values are equal texts.

// Unlimited is the amount of a limit that holds only where an override has an amount.
const Unlimited = "unlimited"

// kinds are what a value must be, and how a text becomes one.
var kinds = map[columns.Kind]struct {
	want  string
	parse func(text string) (value string, ok bool)
}{
	columns.Text:      {wantText, parseText},
	columns.List:      {wantText, parseText},
	columns.Whole:     {"a whole number", parseWhole},
	columns.Amount:    {"a whole number from 0 to 9007199254740992, or unlimited", parseAmount},
	columns.Flag:      {"true or false", func(text string) (string, bool) { return text, text == "true" || text == "false" }},
	columns.Networks:  {"the first address and the size of a network, such as 192.0.2.0/24 or 2001:db8::/32, or an address", parseNetwork},
	columns.Duration:  {"a duration such as 30s, 5m, 1h or 1d, in whole microseconds", parseDuration},
	columns.Moment:    {"a time such as 2026-11-27T18:00:00Z, 2026-11-27T18:00:00+01:00 or 2026-11-27, or never", parseMoment},
	columns.Range:     {"FROM..UNTIL, where either may be missing, a time is such as 2026-11-27 or 2026-11-27T18:00:00Z, and the end is after the begin", parseRange},
	columns.Day:       {"a day such as 2026-11-27", parseDay},
	columns.Digest:    {"the SHA-256 of a key, as 64 hexadecimal digits", parseDigest},
	columns.KeyDigest: {"the SHA-256 of a key, as 64 hexadecimal digits", parseDigest},
}

// Value makes a value of texts: of one text, unless the column has lists. The error is a *ratelimit.FieldError.
func (t *Table) Value(c *Column, texts []string) (any, error) {
	if c.Kind.IsList() && len(texts) == 0 {
		return nil, &ratelimit.FieldError{Field: c.InFile(), Value: "[]", Want: "one or more values; leave the field out for its default"}
	}
	kind := kinds[c.Kind]
	list := make([]string, len(texts))
	for i, text := range texts {
		ok := false
		if list[i], ok = kind.parse(text); ok && !c.Allows(list[i]) {
			return nil, &ratelimit.FieldError{Field: c.InFile(), Value: text, Want: fmt.Sprintf("%d to %d", c.Min, c.Max)}
		} else if !ok {
			wrong := &ratelimit.FieldError{Field: c.InFile(), Value: text, Want: kind.want}
			if c.Kind == columns.Digest || c.Kind == columns.KeyDigest {
				wrong.Value = "…" // it may be a key
			}
			return nil, wrong
		}
		err := c.Check(text)
		if check := checks[t.Section+" "+c.InFile()]; check != nil {
			err = check(text)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case c.Kind.IsList():
		return list, nil
	case c.Kind == columns.Moment && list[0] == columns.Never:
		return c.Default, nil // of a column that may be NULL, this is never
	}
	return list[0], nil
}

const wantText = "a text in UTF-8 without a zero byte"

func parseText(text string) (string, bool) {
	return text, utf8.ValidString(text) && !strings.Contains(text, "\x00")
}

func parseWhole(text string) (string, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return strconv.FormatInt(n, 10), err == nil
}

func parseAmount(text string) (string, bool) {
	if text == Unlimited {
		return text, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return strconv.FormatInt(n, 10), err == nil && n >= 0 && n <= ratelimit.MaxEvents
}

func parseNetwork(text string) (string, bool) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		return netip.PrefixFrom(address, address.BitLen()).String(), true
	}
	network, err := netip.ParsePrefix(text)
	return network.String(), err == nil && network == network.Masked()
}

// units are those of durations.
var units = []struct {
	name string
	size time.Duration
}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}}

func parseDuration(text string) (string, bool) {
	d, err := ratelimit.ParseWindow(text)
	if err != nil || d == 0 {
		return "0s", err == nil
	}
	for _, unit := range units {
		if d%unit.size == 0 {
			return strconv.FormatInt(int64(d/unit.size), 10) + unit.name, true
		}
	}
	return "", false
}

// first and last are the bounds of times. What begins before, or ends later, has no bound.
var (
	first = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)
	last  = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// ParseTime reads a point in time, in UTC. A day begins at midnight.
func ParseTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04", time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), true // the database has no more digits
		}
	}
	return time.Time{}, false
}

func parseMoment(text string) (string, bool) {
	if text == columns.Never {
		return text, true
	}
	t, ok := ParseTime(text)
	if !t.Before(last) {
		return columns.Never, ok
	}
	return t.Format(time.RFC3339Nano), ok && t.After(first)
}

func parseRange(text string) (string, bool) {
	from, until, found := strings.Cut(text, "..")
	if !found {
		return "", false
	}
	begin, end := first, last
	if from != "" {
		if begin, found = ParseTime(from); !found {
			return "", false
		}
		from = begin.Format(time.RFC3339Nano)
	}
	if until != "" {
		if end, found = ParseTime(until); !found {
			return "", false
		}
		until = end.Format(time.RFC3339Nano)
	}
	if !begin.After(first) {
		from = ""
	}
	if !end.Before(last) {
		until = ""
	}
	return from + ".." + until, begin.Before(end) && begin.Before(last) && end.After(first)
}

func parseDay(text string) (string, bool) {
	_, err := time.Parse(time.DateOnly, text)
	return text, err == nil
}

func parseDigest(text string) (string, bool) {
	text = strings.ToLower(text)
	return text, isDigest(text)
}

func isDigest(text string) bool {
	bytes, err := hex.DecodeString(text)
	return err == nil && len(bytes) == 32
}
