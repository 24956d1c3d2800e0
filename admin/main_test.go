package admin_test

import (
	"os"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/pgratelimit/pg-ratelimit/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

func TestMain(m *testing.M) { os.Exit(caddytest.Main(m)) }
