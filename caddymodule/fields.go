package caddymodule

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// Text is the value of a setting. In JSON it is a string, a number, a boolean, or an array of these with
// the words of the setting.
type Text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"', 'n', '{': // null leaves the setting out, and an object is an error with the field
		return json.Unmarshal(raw, (*string)(t))
	case '[':
		var words []Text
		err := json.Unmarshal(raw, &words)
		for i, word := range words {
			if i > 0 {
				*t += " "
			}
			*t += word
		}
		return err
	}
	*t = Text(raw)
	return nil
}

// Duration is the value of a setting that is a duration. JSON may have a string or a number of nanoseconds,
// as for other durations of Caddy.
type Duration string

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' || raw[0] == 'n' {
		return json.Unmarshal(raw, (*string)(d))
	}
	var nanoseconds time.Duration
	if err := json.Unmarshal(raw, (*int64)(&nanoseconds)); err != nil {
		return err
	}
	*d = Duration(nanoseconds.String())
	return nil
}

// Values returns the settings in the fields of a struct, by their JSON names, or nil for a nil pointer.
func Values(from any) settings.Values {
	v := reflect.ValueOf(from)
	if v.IsNil() {
		return nil
	}
	texts := settings.Values{}
	for _, f := range reflect.VisibleFields(v.Elem().Type()) {
		if f.Type.Kind() == reflect.String {
			texts[nameOf(f)] = v.Elem().FieldByIndex(f.Index).String()
		}
	}
	return texts
}

// field returns the field of a struct with a JSON name. It panics if there is none.
func field(from any, name string) reflect.Value {
	v := reflect.ValueOf(from).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if nameOf(f) == name {
			return v.FieldByIndex(f.Index)
		}
	}
	panic(fmt.Sprintf("%T has no field for the setting %s", from, name))
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
