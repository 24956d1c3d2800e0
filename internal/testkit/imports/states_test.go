package imports

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// sqlState matches an SQLSTATE, and sqlStates each literal of SQL with one.
var (
	sqlState  = regexp.MustCompile(`^(?:[0-9][0-9A-Z]{4}|(?:RL|P0|XX|HV|F0)[0-9]{3})$`)
	sqlStates = regexp.MustCompile(`'((?:[02-5][0-9A-Z]|RL|P0|XX)[0-9A-Z]{3})'`)
)

func TestSQLStatesStandInOneFile(t *testing.T) {
	const home = "internal/core/pg/sqlstate.go"
	declared, err := os.ReadFile(root + "/" + home)
	if err != nil {
		t.Fatal(err)
	}
	eachString(t, func(place, text string) {
		if sqlState.MatchString(text) && !strings.HasPrefix(place, home) &&
			!strings.HasPrefix(place, "internal/testkit/") {
			t.Errorf("%s: %s: must be a constant of %s", place, text, home)
		}
	})
	err = eachFile(".sql", func(path, sql string) error {
		for _, found := range sqlStates.FindAllStringSubmatch(sql, -1) {
			if !strings.Contains(string(declared), found[1]) {
				t.Errorf("%s: %s: must be in %s", path, found[1], home)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
