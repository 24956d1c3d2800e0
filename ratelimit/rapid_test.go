package ratelimit_test

import (
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// long is how many times longer than by default the tests run that can: the
// environment variable PG_RATELIMIT_TEST_LONG, a whole number.
func long() int {
	n, err := strconv.Atoi(os.Getenv("PG_RATELIMIT_TEST_LONG"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// checking keeps the tests apart that set rapid's flag, of which there is one a
// process.
var checking sync.Mutex

// check is rapid.Check with a number of checks of the property's own: enough for
// it to find each mutation of what it checks. -rapid.checks overrides it.
func check(t *testing.T, checks int, property func(*rapid.T)) {
	t.Helper()
	checking.Lock()
	defer checking.Unlock()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		before := flag.Lookup("rapid.checks").Value.String()
		setChecks(t, strconv.Itoa(checks*long()))
		defer setChecks(t, before)
	}
	rapid.Check(t, property)
}

func setChecks(t *testing.T, checks string) {
	if err := flag.Lookup("rapid.checks").Value.Set(checks); err != nil {
		t.Fatal(err)
	}
}
