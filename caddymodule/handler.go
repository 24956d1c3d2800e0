package caddymodule

import (
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "go.uber.org/zap"
)
