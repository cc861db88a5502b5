//! The entry point, two system calls, and the four memory functions that the compiler may call. All `unsafe` is here.

use core::arch::{asm, global_asm};

const SYS_READ: usize = 0;
const SYS_EXIT_GROUP: usize = 231;

// At entry the stack is 16-byte aligned, and the call pushes eight bytes, as the ABI of `extern "C"` expects.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {entry}",
    "ud2",
    entry = sym super::entry,
);

/// Ends the process.
pub fn exit(status: u8) -> ! {
    // SAFETY: `exit_group` takes one integer and does not return.
    unsafe { asm!("syscall", in("rax") SYS_EXIT_GROUP, in("rdi") usize::from(status), options(noreturn, nostack)) }
}

/// Reads descriptor 0 to its end; `None` if a read fails, or the buffer is full before the end is seen.
pub fn read_to_end(buffer: &mut [u8]) -> Option<&[u8]> {
    let mut filled = 0;
    loop {
        let room = buffer.get_mut(filled..)?;
        if room.is_empty() {
            return None;
        }
        match read(room) {
            0 => return buffer.get(..filled),
            count @ 1.. => filled += count.unsigned_abs(),
            _ => return None,
        }
    }
}

/// `read(0, room, room.len())`: the count, or a negative errno.
fn read(room: &mut [u8]) -> isize {
    let answer: isize;
    // SAFETY: the kernel writes at most `room.len()` bytes from `room.as_mut_ptr()`, which `room` owns for this call;
    // the instruction changes rcx and r11 beside its result.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_READ => answer,
            in("rdi") 0,
            in("rsi") room.as_mut_ptr(),
            in("rdx") room.len(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// # Safety
/// `to` and `from` must be valid for `count` bytes and not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both ranges; the ABI keeps the direction flag clear. One instruction, since a
    // loop could be compiled into a call of this very function.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack));
    }
    to
}

/// # Safety
/// `to` and `from` must be valid for `count` bytes; they may overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the caller vouches for both ranges, and forward order never overwrites what is still to be read,
        // since `to` is below `from` or past its end.
        return unsafe { memcpy(to, from, count) };
    }
    let last = count.wrapping_sub(1);
    // SAFETY: the caller vouches for both ranges; they are walked from their last bytes down, and the direction flag
    // is clear again afterward, as the ABI demands. `count` is not 0 here: it exceeds the distance.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.wrapping_add(last) => _,
            inout("rsi") from.wrapping_add(last) => _,
            options(nostack),
        );
    }
    to
}

/// # Safety
/// `to` must be valid for `count` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the range; the ABI keeps the direction flag clear.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("eax") byte, options(nostack));
    }
    to
}

/// # Safety
/// `a` and `b` must be valid for `count` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: `index` is below `count`, for which the caller vouches; volatile, so that the loop is not compiled
        // into a call of this very function.
        let left = unsafe { a.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        let right = unsafe { b.wrapping_add(index).read_volatile() };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// # Safety
/// As [`memcmp`].
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    // SAFETY: the caller vouches for both ranges.
    unsafe { memcmp(a, b, count) }
}

/// The unwind tables of the prebuilt `core` name this function. A panic aborts here, so nothing ever unwinds into it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
