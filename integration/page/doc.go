// Package page tests the page of `caddy pg-ratelimit page` in Chromium.
package page
