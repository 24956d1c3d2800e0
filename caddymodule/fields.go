package caddymodule

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

// Text is the value of a setting. JSON may have it as text, as a number, or as true or false.
type Text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"', 'n', '{', '[': // null is a setting that was left out, and the last two are errors
		return json.Unmarshal(raw, (*string)(t))
	}
	*t = Text(raw)
	return nil
}

// values are the settings in the fields of a struct, by their names in JSON.
func values(of any) settings.Values {
	all := settings.Values{}
	v := reflect.ValueOf(of).Elem()
	for i := range v.NumField() {
		if text, ok := v.Field(i).Interface().(Text); ok {
			all[nameOf(v.Type().Field(i))] = string(text)
		}
	}
	return all
}

// field returns the field of a struct that has a name in JSON: that of a setting.
func field(of any, name string) reflect.Value {
	v := reflect.ValueOf(of).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if nameOf(f) == name {
			return v.FieldByIndex(f.Index)
		}
	}
	panic(fmt.Sprintf("%T has no field for the setting %s", of, name))
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
