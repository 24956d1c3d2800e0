package command

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The functions here return the text of a cell. Texts of the database are printed with
// escapes for what could change a terminal or a table.

// none is the cell of a value that is not there.
const none = "-"

func text(value string) string {
	if value == "" {
		return none
	}
	if strings.IndexFunc(value, func(c rune) bool { return !unicode.IsPrint(c) }) >= 0 {
		return strconv.Quote(value)
	}
	return value
}

func optional(value *string) string {
	if value == nil {
		return none
	}
	return text(*value)
}

func whole(value int64) string { return strconv.FormatInt(value, 10) }

func optionalWhole(value *int64, ifNil string) string {
	if value == nil {
		return ifNil
	}
	return whole(*value)
}

func percent(value *float64) string {
	if value == nil {
		return none
	}
	return strconv.FormatFloat(*value, 'f', 1, 64) + " %"
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func optionalMoment(t *time.Time, ifNil string) string {
	if t == nil {
		return ifNil
	}
	return moment(*t)
}

// span is a duration in seconds, as in 1h, 1m30s, 7d or 0.5s.
func span(seconds float64) string {
	const day = 24 * 60 * 60
	if seconds >= day && math.Mod(seconds, day) == 0 {
		return whole(int64(seconds)/day) + "d"
	}
	d := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
