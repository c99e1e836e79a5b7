//! Reads the bytecode of Lua 5.1 as `lua_dump` writes it on this machine: sizes and byte order are those of the
//! process. The bytecode comes from Lua's compiler; whatever is unexpected yields `None`.

/// A compiled function.
pub(super) struct Function {
    /// Number of its upvalues.
    pub(super) upvalues: usize,
    /// Number of registers it uses.
    pub(super) registers: usize,
    /// Its instructions.
    pub(super) code: Vec<Instruction>,
    /// Its constants.
    pub(super) constants: Vec<Constant>,
    /// The functions that are defined in it.
    pub(super) functions: Vec<Function>,
}

/// A constant.
pub(super) enum Constant {
    /// A string.
    Text(Box<[u8]>),
    /// Nil, a boolean or a number.
    Other,
}

/// An instruction: an operation and its operands, or a bare word that belongs to the preceding one.
#[derive(Clone, Copy)]
pub(super) struct Instruction(pub(super) u32);

/// Operands from this one on refer to constants instead of registers.
const FIRST_CONSTANT: usize = 256;
/// The jump distance that is stored as zero.
const JUMP_BIAS: isize = (1 << 17) - 1;

/// An operand that is a register or a constant.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    /// A register.
    Register(usize),
    /// A constant.
    Constant(usize),
}

impl Instruction {
    /// The operation.
    pub(super) fn operation(self) -> u32 {
        self.0 & 0x3f
    }

    /// Operand A.
    pub(super) fn a(self) -> usize {
        (self.0 >> 6 & 0xff) as usize
    }

    /// Operand B.
    pub(super) fn b(self) -> usize {
        (self.0 >> 23 & 0x1ff) as usize
    }

    /// Operand C.
    pub(super) fn c(self) -> usize {
        (self.0 >> 14 & 0x1ff) as usize
    }

    /// Operands B and C as one number.
    pub(super) fn bx(self) -> usize {
        (self.0 >> 14) as usize
    }

    /// Operands B and C as the distance of a jump.
    pub(super) fn jump(self) -> isize {
        self.bx() as isize - JUMP_BIAS
    }

    /// Operand B, which may be a constant.
    pub(super) fn operand_b(self) -> Operand {
        operand(self.b())
    }

    /// Operand C, which may be a constant.
    pub(super) fn operand_c(self) -> Operand {
        operand(self.c())
    }
}

fn operand(number: usize) -> Operand {
    match number.checked_sub(FIRST_CONSTANT) {
        Some(constant) => Operand::Constant(constant),
        None => Operand::Register(number),
    }
}

/// The header of bytecode: signature, version 5.1, official format, byte order, the sizes of `int`, `size_t`,
/// instructions and numbers, and floating-point numbers.
const HEADER: [u8; 12] = [
    0x1b,
    b'L',
    b'u',
    b'a',
    0x51,
    0,
    cfg!(target_endian = "little") as u8,
    size_of::<i32>() as u8,
    size_of::<usize>() as u8,
    size_of::<u32>() as u8,
    size_of::<f64>() as u8,
    0,
];

/// Maximum nesting of functions.
const NESTING_MAX: usize = 50;

/// Reads a function.
pub(super) fn read(bytes: &[u8]) -> Option<Function> {
    let mut reader = Reader(bytes.strip_prefix(&HEADER)?);
    reader.function(0)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.take(size_of::<i32>())?.try_into().ok()?;
        usize::try_from(i32::from_ne_bytes(bytes)).ok()
    }

    /// A string, without the NUL byte that is stored behind it.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = usize::from_ne_bytes(self.take(size_of::<usize>())?.try_into().ok()?);
        let text = self.take(len)?;
        Some(text.split_last().map_or(text, |(_, text)| text))
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| item(self)).collect()
    }

    fn function(&mut self, nesting: usize) -> Option<Function> {
        if nesting > NESTING_MAX {
            return None;
        }
        // The name of the source, and the lines.
        self.text()?;
        self.number()?;
        self.number()?;
        let upvalues = self.byte()?.into();
        // The number of parameters, and whether there may be more.
        self.take(2)?;
        let registers = self.byte()?.into();
        let code = self.list(|reader| {
            let word = reader.take(size_of::<u32>())?.try_into().ok()?;
            Some(Instruction(u32::from_ne_bytes(word)))
        })?;
        let constants = self.list(Reader::constant)?;
        let functions = self.list(|reader| reader.function(nesting + 1))?;
        // For error messages: lines, local variables, upvalues.
        self.list(Reader::number)?;
        self.list(|reader| reader.text().and(reader.number()).and(reader.number()))?;
        self.list(Reader::text)?;
        Some(Function { upvalues, registers, code, constants, functions })
    }

    fn constant(&mut self) -> Option<Constant> {
        match self.byte()? {
            0 => {}
            1 => drop(self.byte()?),
            3 => drop(self.take(size_of::<f64>())?),
            4 => return Some(Constant::Text(self.text()?.into())),
            _ => return None,
        }
        Some(Constant::Other)
    }
}
