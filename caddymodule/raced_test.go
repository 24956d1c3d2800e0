//go:build race

package caddymodule

const raced = true
