//go:build !race

package postgres_test

const raced = false
