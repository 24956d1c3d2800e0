package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

// The list needs no database, and has every setting with its default.
func TestSettingsAreListed(t *testing.T) {
	s := &shell{t: t, dsn: "postgres://127.0.0.1:1/none"}
	table := s.must("settings")
	var listed []struct{ In, Setting, Values, Default, Meaning string }
	if err := json.Unmarshal([]byte(s.must("settings", "--json")), &listed); err != nil {
		t.Fatal(err)
	}
	at := 0
	var has func(in string, settings []settings.Setting)
	has = func(in string, settings []settings.Setting) {
		for _, want := range settings {
			got := listed[at]
			at++
			if got.In != in || got.Setting != want.Name || got.Values == "" || strings.ContainsAny(got.Meaning+got.Default, "`[") || (got.Default == "") != (want.Default == "") {
				t.Errorf("setting %d is %+v, want %s of %s with its values and its default", at, got, want.Name, in)
			}
			if !strings.Contains(table, " "+want.Name+" ") {
				t.Errorf("the table lacks %s", want.Name)
			}
			has(want.Name, want.Settings)
		}
	}
	has("directive, zone", settings.LimitTable)
	has("directive", settings.HandlerTable)
	has("global option", settings.StoreTable)
	has("page", settings.PageTable)
	if at != len(listed) {
		t.Errorf("%d settings, want %d", len(listed), at)
	}
}
