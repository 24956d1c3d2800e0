package settings_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzInvalidSettingsAreFieldErrors checks that reading any text of any setting fails only with a *FieldError
// that names the setting and the texts that it accepts. If the setting accepts the text, ReadLimit fails only
// with a *FieldError.
func FuzzInvalidSettingsAreFieldErrors(f *testing.F) {
	seeds := map[string][]string{
		"key": {"{header.X-Api-Key} | {client_ip}", "a | b", "{a}||{b}"}, "algorithm": {"in_flight", "gcra"},
		"limit": {"100 1m", "5", "5 1mo calendar Europe/Berlin"},
		"burst": {"5"}, "cost": {"{header.X}", "7"},
		"settle": {"header X-Cost", "bytes", "json usage.total_tokens", "status 401 403 = 1, else 0"},
		"lease":  {"5%", "0.1%"},
		"audit":  {"sample 1%", "denied"}, "exempt": {"10.0.0.0/8 192.0.2.7 ::1"},
		"timeout": {"250ms"}, "cleanup_probability": {"0.1"}, "fields": {"x ietf"},
	}
	for i := range allSettings {
		for _, text := range append(seeds[allSettings[i].Name], "on") {
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, text string) {
		setting := &allSettings[int(at)%len(allSettings)]
		check := func(text string) error {
			alone := settings.Setting{Name: setting.Name, Want: setting.Want, Read: setting.Read,
				Unset: setting.Unset}
			err := settings.Read([]settings.Setting{alone}, settings.Values{setting.Name: text},
				&settings.Settings{})
			var wrong *ratelimit.FieldError
			isComplete := errors.As(err, &wrong) && wrong.Field != "" && wrong.Want != ""
			if err != nil && !isComplete {
				t.Errorf("%s %q: error %v, want one with the setting and its values", setting.Name, text, err)
			}
			return err
		}
		if check(text) != nil {
			return
		}
		values := settings.Values{"prefix": "p", "limit": "100 1m"}
		values[setting.Name] = text
		_, err := settings.ReadLimit(values)
		if wrong := (*ratelimit.FieldError)(nil); err != nil && !errors.As(err, &wrong) {
			t.Errorf("%s %q: error %v, want nil or a FieldError", setting.Name, text, err)
		}
	})
}

// FuzzSettleTextIsParsedBack checks that the text of settle, which explanations print, has the same meaning.
func FuzzSettleTextIsParsedBack(f *testing.F) {
	for _, text := range []string{"header X-Cost", "json usage.total_tokens", "status 401 403 = 1, else 0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		settle, err := option.ParseCostSource(text)
		if err != nil || settle == nil {
			return
		}
		again, err := option.ParseCostSource(settle.Text)
		if err != nil || !reflect.DeepEqual(settle, again) {
			t.Errorf("ParseSettle(%q): got %+v, and for its text %+v, %v, want the same", text, settle, again,
				err)
		}
	})
}
