package caddymodule_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

func TestCaddyfileAdaptsToJSONThatLoads(t *testing.T) {
	caddytest.CheckCaddyfiles(t, "testdata/*.caddyfiletest")
}
