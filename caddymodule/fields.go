package caddymodule

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// field returns the field of a struct that has a name in JSON: that of a setting.
func field(of any, name string) reflect.Value {
	v := reflect.ValueOf(of).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return v.FieldByIndex(f.Index)
		}
	}
	panic(fmt.Sprintf("%T has no field for the setting %s", of, name))
}

// setText sets a field to what text means.
func setText(field reflect.Value, text string) (err error) {
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	var number int64
	var fraction float64
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
	case reflect.Bool:
		field.SetBool(text == "on")
	case reflect.Float64:
		fraction, err = strconv.ParseFloat(text, 64)
		field.SetFloat(fraction)
	default:
		if field.Type() == reflect.TypeFor[caddy.Duration]() {
			duration, failure := ratelimit.ParseWindow(text)
			number, err = int64(duration), failure
		} else {
			number, err = strconv.ParseInt(text, 10, field.Type().Bits())
		}
		field.SetInt(number)
	}
	return err
}

// text is what a field means in text. "" is a field that was left out.
func text(field reflect.Value) string {
	if field.IsZero() {
		return ""
	}
	return fmt.Sprint(reflect.Indirect(field).Interface())
}

// settings are those of the limit in text.
func (r *LimitSettings) settings() edge.LimitSettings {
	var s edge.LimitSettings
	from, to := reflect.ValueOf(r).Elem(), reflect.ValueOf(&s).Elem()
	for i := range from.NumField() {
		to.FieldByName(from.Type().Field(i).Name).SetString(text(from.Field(i)))
	}
	return s
}
