//go:build !race

package caddymodule

const raced = false
