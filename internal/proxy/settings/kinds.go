package settings

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// dsn returns a setting that is a DSN. It has no Read, because the adapters read DSNs.
func dsn(name, want string) Setting { return Setting{Name: name, Form: Words, Want: want} }

// number returns a setting that is a whole number from 1 to maxN. If the value is empty, the setting stays
// unset: set is not called.
func number(name string, maxN int64, unset string, set func(dst *Settings, n int64)) Setting {
	read := func(dst *Settings, text string) error {
		if text == "" {
			return nil
		}
		n, err := parseNumber(text, maxN)
		if err == nil {
			set(dst, n)
		}
		return err
	}
	want := "a whole number from 1 to " + strconv.FormatInt(maxN, 10)
	return Setting{Name: name, Want: want, Read: read, Unset: unset}
}

// parseNumber parses a whole number from 1 to maxN.
func parseNumber(text string, maxN int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > maxN {
		return 0, errWant
	}
	return n, nil
}

// wantSize describes a valid size.
const wantSize = "a number of bytes up to 1024GB, such as 4096, 512KB, 8MB or 2GB"

// parseSize parses a number of bytes. A KB has 1,024 bytes.
func parseSize(text string) (int64, error) {
	const most = 1 << 40
	unit := int64(1024)
	for _, name := range []string{"KB", "MB", "GB"} {
		if strings.HasSuffix(text, name) {
			n, err := parseNumber(strings.TrimSuffix(text, name), most/unit)
			return n * unit, err
		}
		unit *= 1024
	}
	return parseNumber(text, most)
}

// oneOf returns a setting with one of texts as its value. The first text, which may be "", is the default.
func oneOf(name string, set func(dst *Settings, text string), texts ...string) Setting {
	read := func(dst *Settings, text string) error {
		text = option.Unquoted(text)
		for _, valid := range texts {
			if text == valid {
				set(dst, text)
				return nil
			}
		}
		return errWant
	}
	named := texts
	if named[0] == "" {
		named = named[1:]
	}
	last := len(named) - 1
	want := named[last]
	if last > 0 {
		want = strings.Join(named[:last], ", ") + " or " + want
	}
	return Setting{Name: name, Form: Words, Want: want, Read: read, Unset: texts[0]}
}

// onOff returns a setting that is a switch.
func onOff(name, unset string, field func(dst *Settings) *bool) Setting {
	read := func(dst *Settings, text string) (err error) {
		*field(dst), err = ParseSwitch("", text)
		return err
	}
	return Setting{Name: name, Form: Switch, Read: read, Unset: unset}
}

// ParseSwitch parses a setting that is on or off; "" is off. Errors name the field name.
func ParseSwitch(name, text string) (bool, error) {
	switch text {
	case "on", "true", "1":
		return true, nil
	case "", "off", "false", "0":
		return false, nil
	}
	return false, option.Invalid(name, text, "on or off, or true or false")
}

// nodeName returns a setting that names a node or a region.
func nodeName(name string, field func(dst *Settings) *string) Setting {
	const maxBytes = 100
	control := func(c rune) bool { return c < ' ' || c == 0x7f }
	read := func(dst *Settings, text string) error {
		*field(dst) = text
		if len(text) > maxBytes || !utf8.ValidString(text) || strings.IndexFunc(text, control) >= 0 {
			return errWant
		}
		return nil
	}
	want := "a name of 1 to 100 bytes of UTF-8 without control characters"
	return Setting{Name: name, Want: want, Read: read}
}

// retention returns the setting for the retention of a part of the history, which what names as in
// option.Retention.What.
func retention(name, what string) Setting {
	read := func(dst *Settings, text string) error {
		if text == "" {
			return nil
		}
		age, err := option.ParseAge(text)
		if err != nil || age < 24*time.Hour || age > option.MaxAge {
			return errWant
		}
		dst.History.Retention = append(dst.History.Retention, option.Retention{What: what, Keep: age})
		return nil
	}
	want := "a duration from 1d to 100y, such as 90d, 12w or 7y"
	return Setting{Name: name, Want: want, IsDuration: true, Read: read}
}
