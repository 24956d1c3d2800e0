//go:build race

package ratelimit

const raced = true
