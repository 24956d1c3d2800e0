package admin_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

func TestCaddyfileOfPageAdaptsToJSONThatLoads(t *testing.T) {
	caddytest.CheckCaddyfiles(t, "testdata/*.caddyfiletest")
}

func TestInvalidCaddyfilesOfPagesAreRejected(t *testing.T) {
	caddytest.CheckRejectedCaddyfiles(t, "testdata/refused.txt")
}
