package command

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// none is the cell of a value that is not there.
const none = "-"

// cell is the text of a value. A pointer that is nil is a value that is not there.
func cell(value any) string {
	if pointer := reflect.ValueOf(value); pointer.Kind() == reflect.Pointer {
		if pointer.IsNil() {
			return none
		}
		value = pointer.Elem().Interface()
	}
	switch value := value.(type) {
	case string:
		return text(value)
	case time.Time:
		return moment(value)
	case bool:
		if value {
			return "yes"
		}
		return "no"
	}
	return fmt.Sprint(value)
}

// or is a value, or a text if there is none.
func or[T any](value *T, ifNil string) string {
	if value == nil {
		return ifNil
	}
	return cell(*value)
}

// text has escapes for what could change a terminal or a table.
func text(value string) string {
	if value == "" {
		return none
	}
	if strings.IndexFunc(value, func(c rune) bool { return !unicode.IsPrint(c) }) >= 0 {
		return strconv.Quote(value)
	}
	return value
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// span is a duration in seconds, as in 1h, 1m30s, 7d or 0.5s.
func span(seconds float64) string {
	const day = 24 * 60 * 60
	if seconds >= day && math.Mod(seconds, day) == 0 {
		return strconv.FormatInt(int64(seconds)/day, 10) + "d"
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
